"""What Octo, OpenVLA and OpenVLA-OFT make of each dataset: NumPy, written from what they do.

An episode is a mapping of feature paths to arrays [T, w] (texts: lists). ``wanted`` gives what a
project trains on. Nothing of the library is used here.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from episode_rules import binarise, rel2abs

Arrays = Mapping[str, Any]
_CONVERTED = "_converted_externally_to_rlds"


@dataclass(frozen=True)
class Wanted:
    """What a project makes of one episode.

    Attributes:
        action: [T', A].
        state: [T', S], or ``None`` where it takes none.
        language: T' texts.
        steps: [T'] which steps of the file these are.
        valid: [T'] which of them are trained on.
    """

    action: np.ndarray
    state: np.ndarray | None
    language: list[str]
    steps: np.ndarray
    valid: np.ndarray


def zeros(like: np.ndarray, width: int) -> np.ndarray:
    return np.zeros((len(like), width), np.float32)


def clip01(x: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(x, np.float32(0)), np.float32(1))


def beside(*parts: np.ndarray) -> np.ndarray:
    return np.concatenate([np.asarray(part, np.float32) for part in parts], axis=1)


def q2e(q: np.ndarray) -> np.ndarray:
    """Quaternions x, y, z, w to angles as TensorFlow Graphics has them, row by row."""
    eps = np.float32(2 * np.finfo(np.float32).eps)
    shrink = np.float32(1) - eps
    found = []
    for x, y, z, w in q.astype(np.float32):
        x2, y2, z2 = (
            np.float32(2) * x * shrink,
            np.float32(2) * y * shrink,
            np.float32(2) * z * shrink,
        )
        r00 = shrink * (np.float32(1) - (y2 * y + z2 * z))
        r10 = shrink * (y2 * x + z2 * w)
        r20 = shrink * (z2 * x - y2 * w)
        r21 = shrink * (z2 * y + x2 * w)
        r22 = shrink * (np.float32(1) - (x2 * x + y2 * y))
        pitch = -np.arcsin(r20)
        sign = np.float32(1 if np.cos(pitch) >= 0 else -1)
        r00 += eps if r00 >= 0 else -eps
        r22 += eps if r22 >= 0 else -eps
        found.append(
            (np.arctan2(sign * r21, sign * r22), pitch, np.arctan2(sign * r10, sign * r00))
        )
    return np.asarray(found, np.float32)


def wanted(name: str, style: str, episode: Arrays) -> Wanted | None:
    """What ``style`` makes of an episode of dataset ``name``; ``None``: it is left out."""
    steps = np.arange(len(episode["is_first"]))
    openvla = style in ("openvla", "oft")
    if name == "kuka" and not episode["/success"]:
        return None
    if name in ("bridge_dataset", "bridge"):
        return _bridge(name, style, episode, steps)
    if name.startswith("berkeley_rpt"):
        return _rpt(episode, steps)
    if name == "aloha_mobile_dataset":
        steps = steps[::5]
    valid = np.ones(len(steps), bool)
    if name == "droid":
        if style == "openpi" and "success" not in episode["/episode_metadata/file_path"]:
            return None
        if openvla:
            limits = 1e-5 * (np.subtract(_DROID_HIGH, _DROID_LOW) + 1e-8) / 2
            valid = (np.abs(episode["action_dict/cartesian_velocity"]) > limits).any(axis=1)
    action = _action(name, style, episode)[steps]
    state = _state(name, style, episode)
    state = None if state is None else state[steps]
    language = _language(name, style, episode)
    if openvla and not any(language):
        return None
    return Wanted(action, state, [language[t] for t in steps], steps, valid)


def _language(name: str, style: str, episode: Arrays) -> list[str]:
    count = len(episode["is_first"])
    if style == "octo" and name in _BLANK:
        return [""] * count
    if name == "language_table":
        rows = episode["observation/instruction"].astype(int)
        return ["".join(map(chr, row)).split("\0")[0] for row in rows]
    path = "observation/natural_language_instruction"
    return list(episode[path if path in episode else "language_instruction"])


def _bridge(name: str, style: str, e: Arrays, steps: np.ndarray) -> Wanted | None:
    if style != "octo":
        steps = steps[1:]
    if len(steps) < 2:
        return None
    s = e["observation/state"][steps]
    if name == "bridge":
        gripper = e["action/open_gripper"][steps][:, 0]
    else:
        gripper = binarise(e["action"][steps][:, -1])
    action = beside(s[1:, :6] - s[:-1, :6], gripper[:-1, None])
    language = [_language(name, style, e)[t] for t in steps]
    if style != "octo" and not any(language):
        return None
    middle = [] if style in ("octo", "oft") else [zeros(s, 1)]
    state = beside(s[:, :6], *middle, s[:, -1:])
    return Wanted(action, state[:-1], language[:-1], steps[:-1], np.ones(len(steps) - 1, bool))


def _rpt(e: Arrays, steps: np.ndarray) -> Wanted:
    steps = steps[::3]
    joints, action = e["observation/joint_pos"][steps], e["action"][steps]
    moved = joints[1:, :7] - joints[:-1, :7]
    state = beside(joints, e["observation/gripper"][steps])
    language = [e["language_instruction"][t] for t in steps]
    return Wanted(
        beside(moved, 1 - action[:-1, -1:]), state[:-1], language[:-1], steps[:-1],
        np.ones(len(steps) - 1, bool),
    )  # fmt: skip


# -- actions --------------------------------------------------------------------------------------

_INVERTED_CLIP = (
    *(f"austin_{one}_dataset{_CONVERTED}" for one in ("buds", "sailor", "sirius")),
    "utaustin_mutex",
    *(f"libero_{one}_no_noops" for one in ("spatial", "object", "goal", "10")),
)
_AS_STORED = (
    f"maniskill_dataset{_CONVERTED}", f"utokyo_xarm_pick_and_place{_CONVERTED}",
    f"tokyo_u_lsmo{_CONVERTED}", f"dlr_sara_pour{_CONVERTED}", f"dlr_sara_grid_clamp{_CONVERTED}",
    f"asu_table_top{_CONVERTED}", f"stanford_robocook{_CONVERTED}", "aloha_mobile_dataset",
    "fmb_dataset", "dobbe", "aloha1_put_X_into_pot_300_demos", "aloha1_fold_shorts_20_demos",
    "aloha1_fold_shirt_30_demos", "aloha1_scoop_X_into_bowl_45_demos",
    f"nyu_rot_dataset{_CONVERTED}",
)  # fmt: skip
_WITHOUT_TERMINATE = (
    f"cmu_franka_exploration_dataset{_CONVERTED}", f"ucsd_kitchen_dataset{_CONVERTED}",
    f"utokyo_pr2_opening_fridge{_CONVERTED}", f"utokyo_pr2_tabletop_manipulation{_CONVERTED}",
    "imperialcollege_sawyer_wrist_cam", "cmu_stretch",
)  # fmt: skip
_BLANK = (
    "kuka", "berkeley_cable_routing", "roboturk", "nyu_door_opening_surprising_effectiveness",
    "viola", "toto", f"stanford_hydra_dataset{_CONVERTED}", f"austin_buds_dataset{_CONVERTED}",
    f"nyu_franka_play_dataset{_CONVERTED}", f"austin_sailor_dataset{_CONVERTED}",
    f"austin_sirius_dataset{_CONVERTED}", "utaustin_mutex",
)  # fmt: skip
_DROID_LOW = (
    -0.7776297926902771, -0.5803514122962952, -0.5795090794563293, -0.6464047729969025,
    -0.7041108310222626, -0.8895104378461838,
)  # fmt: skip
_DROID_HIGH = (
    0.7597932070493698, 0.5726242214441299, 0.7351000607013702, 0.6705610305070877,
    0.6464948207139969, 0.8897542208433151,
)  # fmt: skip


def _action(name: str, style: str, e: Arrays) -> np.ndarray:
    if "action/world_vector" in e:
        return _of_dictionary(name, e)
    if name == "taco_play":
        world = e["action/rel_actions_world"]
        return beside(world[:, :6], clip01(world[:, -1:]))
    if name == "bc_z":
        close = e["action/future/target_close"][:, :1].astype(np.float32)
        moves = [e[f"action/future/{one}_residual"][:, :3] for one in ("xyz", "axis_angle")]
        return beside(*moves, 1 - close)
    if name == "droid" and style == "openpi":
        return beside(e["action_dict/joint_position"], e["action_dict/gripper_position"])
    if name == "droid":
        velocity, grip = e["action_dict/cartesian_velocity"], e["action_dict/gripper_position"]
        return beside(velocity[:, :3], velocity[:, 3:6], 1 - grip)
    a = np.asarray(e["action"], np.float32)
    if name in _AS_STORED:
        return a
    if name in _WITHOUT_TERMINATE:
        return a[:, :-1]
    if name in _INVERTED_CLIP:
        return beside(a[:, :6], 1 - clip01(a[:, -1:]))
    if name.startswith("berkeley_gnm_"):
        return beside(a, zeros(a, 2), zeros(a, 2), zeros(a, 1))
    short = name.removesuffix(_CONVERTED).removesuffix("_dataset")
    return _OTHER_ACTIONS[short](a, e)


_OTHER_ACTIONS: dict[str, Callable[[np.ndarray, Arrays], np.ndarray]] = {
    "language_table": lambda a, e: beside(a, zeros(a, 2), zeros(a, 2), zeros(a, 1) + 1),
    "stanford_kuka_multimodal": lambda a, e: beside(a[:, :3], zeros(a, 3), a[:, -1:]),
    "stanford_hydra": lambda a, e: beside(a[:, :6], 1 - a[:, -1:]),
    "nyu_franka_play": lambda a, e: beside(a[:, 7:13], clip01(a[:, 13:14])),
    "furniture_bench": lambda a, e: beside(a[:, :3], q2e(a[:, 3:7]), 1 - clip01(a[:, -1:])),
    "ucsd_pick_and_place": lambda a, e: beside(a[:, :3], zeros(a, 3), a[:, -1:]),
    "utokyo_xarm_bimanual": lambda a, e: a[:, 7:],
    "robo_net": lambda a, e: beside(a[:, :4], zeros(a, 2), a[:, -1:]),
    "berkeley_mvp": lambda a, e: beside(a[:, :7], 1 - a[:, 7:]),
    "kaist_nonprehensile": lambda a, e: beside(a[:, :6], zeros(a, 1)),
    "stanford_mask_vit": lambda a, e: beside(a[:, :4], zeros(a, 2), a[:, -1:]),
    "dlr_edan_shared_control": lambda a, e: beside(a[:, :6], 1 - a[:, -1:]),
    "iamlab_cmu_pickup_insert": lambda a, e: beside(a[:, :3], q2e(a[:, 3:7]), a[:, 7:8]),
    "uiuc_d3field": lambda a, e: beside(a, zeros(a, 3), zeros(a, 1)),
    "berkeley_fanuc_manipulation": lambda a, e: beside(a, 1 - e["observation/state"][:, 6:7]),
    "cmu_play_fusion": lambda a, e: a[:, [0, 1, 2, 5, 6, 7, 8]],
}


def _of_dictionary(name: str, e: Arrays) -> np.ndarray:
    world = e["action/world_vector"]
    turned = e.get("action/rotation_delta", zeros(world, 3))
    if name == "berkeley_cable_routing":
        gripper = zeros(world, 1)
    elif name == "toto":
        gripper = e["action/open_gripper"]
    elif name == "columbia_cairlab_pusht_real":
        gripper = e["action/gripper_closedness_action"]
    elif name in ("roboturk", "viola"):
        gripper = 1 - clip01(e["action/gripper_closedness_action"])
    else:
        gripper = rel2abs(e["action/gripper_closedness_action"][:, 0])[:, None]
    return beside(world, turned, gripper)


# -- states ---------------------------------------------------------------------------------------

_Parts = list[tuple[str, slice] | int]
_TOLD = """\
fractal20220817_data: base_pose_tool_reached gripper_closed
kuka: clip_function_input/base_pose_tool_reached gripper_closed
taco_play: robot_obs[:6] 1 robot_obs[7:8]
jaco_play: end_effector_cartesian_pos[:6] 1 end_effector_cartesian_pos[6:7]
berkeley_cable_routing: robot_state 1
viola: joint_states gripper_states
berkeley_autolab_ur5: robot_state[6:14]
toto ucsd_kitchen dlr_edan_shared_control: state[:7] 1
language_table: effector_translation 6
columbia_cairlab_pusht_real: robot_state 6
stanford_kuka_multimodal: ee_position ee_orientation 1
nyu_rot ucsd_pick_and_place utokyo_pr2_opening_fridge utokyo_pr2_tabletop_manipulation tokyo_u_lsmo
  stanford_robocook: state[:6] 1 state[-1:]
stanford_hydra: state[:3] state[7:10] 1 state[-3:-2]
austin_buds utaustin_mutex: state[:8]
nyu_franka_play: state[-6:] 2
maniskill: tcp_pose state[7:8]
furniture_bench: state[:7] state[-1:]
austin_sailor austin_sirius cmu_play_fusion aloha_mobile dobbe aloha1_put_X_into_pot_300_demos
  aloha1_fold_shorts_20_demos aloha1_fold_shirt_30_demos aloha1_scoop_X_into_bowl_45_demos: state
bc_z: present/xyz present/axis_angle 1 present/sensed_close
utokyo_xarm_pick_and_place: end_effector_pose 2
utokyo_xarm_bimanual: pose_r 2
robo_net: state[:4] 3 state[-1:]
berkeley_mvp: pose gripper
kaist_nonprehensile: state[-7:] 1
stanford_mask_vit: end_effector_pose[:4] 3 end_effector_pose[4:5]
dlr_sara_pour: state 2
dlr_sara_grid_clamp: state[:6] 2
asu_table_top: /ground_truth_states/EE 1 state[-1:]
imperialcollege_sawyer_wrist_cam: 7 state
iamlab_cmu_pickup_insert: state[:7] state[7:8]
berkeley_fanuc_manipulation: state[:6] 1 state[6:7]
cmu_stretch: state[:3] 4 state[3:4]
fmb: eef_pose state_gripper_pose
berkeley_gnm_recon berkeley_gnm_cory_hall berkeley_gnm_sac_son: position 3 yaw 2
libero_spatial_no_noops libero_object_no_noops libero_goal_no_noops libero_10_no_noops: state[:6] 1
  state[-2:]
"""
"""Names: features of OpenVLA's state, with columns, and so many columns of zeros."""


def _part(told: str) -> tuple[str, slice] | int:
    name, _, columns = told.removesuffix("]").partition("[")
    first, _, stop = columns.partition(":")
    taken = slice(int(first or 0), int(stop) if stop else None)
    return int(name) if name.isdigit() else (name, taken)


_STATES: dict[str, _Parts] = {
    name: [_part(one) for one in parts.split()]
    for names, parts in (entry.split(":", 1) for entry in re.split(r"\n(?! )", _TOLD.rstrip()))
    for name in names.split()
}
_OCTO_PADS = {"cmu_stretch": 3, "stanford_mask_vit": 2}
"""Zeros that Octo has in the middle, where others have none."""
_OCTO_NONE = (
    "utokyo_xarm_pick_and_place", "utokyo_xarm_bimanual", "robo_net",
    "imperialcollege_sawyer_wrist_cam",
)  # fmt: skip
_NONE = (
    "roboturk", "nyu_door_opening_surprising_effectiveness", "cmu_franka_exploration",
    "uiuc_d3field",
)  # fmt: skip


def _state(name: str, style: str, e: Arrays) -> np.ndarray | None:
    short = name.removesuffix(_CONVERTED).removesuffix("_dataset")
    if name == "droid":
        pose = "joint_position" if style == "openpi" else "cartesian_position"
        return beside(e[f"observation/{pose}"], e["observation/gripper_position"])
    if short in _NONE or (style == "octo" and short in _OCTO_NONE):
        return None
    parts = []
    for part in _STATES[short]:
        if isinstance(part, int):
            if style == "octo":
                part = _OCTO_PADS.get(short, 0)
            elif style == "oft" and short.startswith("libero"):
                part = 0
            parts.append(zeros(e["is_first"], part))
        else:
            path, columns = part
            whole = e[path[1:]] if path.startswith("/") else e[f"observation/{path}"]
            parts.append(whole[:, columns])
    return beside(*parts)
