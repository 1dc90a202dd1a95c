"""Declares the demo mixture's 29 datasets: what real mixtures look like, in small.

Not here: how frames are drawn (``demo.frames``), how files are written (``demo.write``).

The features follow what Open X-Embodiment mixtures hold: flat and nested actions of 4 to 14 dims,
states in one piece, in several, or absent; language per step, in the observation, in the episode's
metadata, as code points, or absent; ``features.json`` with and without the image encoding; large
datasets beside one of 24 episodes; one at 50 Hz; one whose robot stands still now and then; depth
beside RGB. Two thirds have no second camera. The order is such that the first few are already
varied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

VERSION = "1.0.0"
"""Version directory of every demo dataset."""

RANGES_FILE = "keep_ranges.json"
"""Beside the version directory of a dataset that idles: the steps at which it does not."""

SIZE_BINS_KB = (5, 10, 15, 20, 25, 30, 35, 40, 45)
"""Upper edges of the histogram of encoded image sizes, in kB (10³ bytes); one more bin is open."""

CODE_POINTS = 96
"""Length of language that is stored as code points; what is left over is NUL."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a dataset's frames look and how they are stored.

    Attributes:
        encoding: ``jpeg`` or ``png``.
        quality: JPEG quality, 1 to 100; unused for PNG.
        noise: peak of the sensor noise in grey levels; 0 is a rendered picture.
        detail: strength of the finest grain, 1 is a photograph.
        bands: grey levels per channel of a rendered picture (PNG); 256 keeps all.
    """

    encoding: str = "jpeg"
    quality: int = 90
    noise: int = 6
    detail: float = 1.0
    bands: int = 256


@dataclass(frozen=True, slots=True)
class DemoDataset:
    """One dataset of the demo mixture.

    Attributes:
        name: dataset and folder name.
        weight: relative share in ``mix.yaml``.
        frames: frames of the train split at scale 1 (in the mean; lengths are drawn).
        lengths: shortest and longest episode, in frames.
        size: height and width of the primary camera in pixels.
        look: the picture's texture and encoding.
        primary: feature of the primary camera.
        second, third: feature and size of another camera, or ``None``.
        depth: feature of depth pictures (uint16 millimetres, PNG, the primary's size), or ``None``.
        hz: control rate, where steps are timed: ``observation/timestamp`` in seconds. Motions are
            that much slower from step to step; ``None`` is untimed, about 10 Hz.
        idles: whether the robot stands still at the start and once later (action 0, state held),
            and ``keep_ranges.json`` lists the steps between.
        action: feature below ``action`` → dims; ``""`` is a flat action. 0 dims is a scalar.
        action_fields: the spec's expression; default every feature in order.
        action_dtype: as stored.
        state: feature → dims; 0 dims is a scalar.
        language: features that hold the instruction.
        language_kind: ``text``, or ``codes`` (int32 code points).
        has_val: whether there is a ``val`` split of about 5 % more episodes.
        states_encoding: whether ``features.json`` says how images are encoded.
        shards: at most so many train shards.
        episodes: a fixed number of train episodes, whatever the scale.
        standard_names: shards are called ``-00000-of-00008``; else as TFDS's sequential writer
            leaves them, ``-00000``.
    """

    name: str
    weight: float
    frames: int
    lengths: tuple[int, int]
    size: tuple[int, int]
    look: Look
    primary: str = "observation/image"
    second: tuple[str, tuple[int, int]] | None = None
    third: tuple[str, tuple[int, int]] | None = None
    depth: str | None = None
    hz: int | None = None
    idles: bool = False
    action: Mapping[str, int] = field(default_factory=lambda: {"": 7})
    action_fields: tuple[object, ...] = ()
    action_dtype: str = "float32"
    state: Mapping[str, int] = field(default_factory=lambda: {"observation/state": 8})
    language: tuple[str, ...] = ("language_instruction",)
    language_kind: str = "text"
    has_val: bool = True
    states_encoding: bool = True
    shards: int = 8
    episodes: int | None = None
    standard_names: bool = True

    @property
    def action_paths(self) -> tuple[str, ...]:
        """The action's features, in order."""
        return tuple(f"action/{key}" if key else "action" for key in self.action)

    @property
    def cameras(self) -> tuple[tuple[str, tuple[int, int]], ...]:
        """Every camera's feature and size, the primary first."""
        return ((self.primary, self.size), *filter(None, (self.second, self.third)))

    def train_episodes(self, scale: float) -> int:
        """Episodes of the train split at ``scale``; never fewer than 2."""
        if self.episodes is not None:
            return self.episodes
        return max(2, round(scale * self.frames / (sum(self.lengths) / 2)))

    def val_episodes(self, scale: float) -> int:
        """Episodes of the val split at ``scale``; 0 where there is none."""
        return max(1, round(0.05 * self.train_episodes(scale))) if self.has_val else 0


def _jpeg(quality: int, noise: int = 6) -> Look:
    return Look("jpeg", quality=quality, noise=noise)


_PNG_FULL = Look("png", noise=0)
_PNG_RENDERED = Look("png", noise=0, bands=24)
_PNG_FLAT = Look("png", noise=0, bands=12, detail=0.0)
_GRIPPER_TERMS = ("action/world_vector", "action/rotation_delta")
_RT = {"world_vector": 3, "rotation_delta": 3, "open_gripper": 1}

DATASETS: tuple[DemoDataset, ...] = (
    DemoDataset(
        "demo_kitchen_sink", 4.0, 2500, (20, 60), (256, 256), _jpeg(92),
        primary="observation/image_0", second=("observation/image_1", (256, 256)),
        state={"observation/state": 7}, shards=12,
    ),
    DemoDataset(
        "demo_mobile_drawers", 3.0, 2500, (20, 70), (256, 320), _jpeg(88),
        action=_RT,
        action_fields=(
            *_GRIPPER_TERMS, {"path": "action/open_gripper[-1:]", "ops": [{"clip": [0, 1]}]},
        ),
        state={"observation/base_pose": 7}, has_val=False, shards=16,
        language=("observation/natural_language_instruction",),
    ),
    DemoDataset(
        "demo_sim_blocks", 1.0, 900, (30, 80), (128, 128), _PNG_FULL,
        primary="observation/rgb", state={}, language=(), action={"": 4}, shards=4,
    ),
    DemoDataset(
        "demo_teacup_24", 0.5, 480, (12, 28), (180, 240), _jpeg(90), episodes=24,
        action={"": 6}, state={"observation/state": 6}, has_val=False, shards=4,
    ),
    DemoDataset(
        "demo_bimanual_fold", 2.0, 1500, (60, 120), (480, 640), _jpeg(84),
        primary="observation/cam_high", second=("observation/cam_wrist", (240, 320)),
        action={"": 14}, state={"observation/state": 14}, shards=8, hz=50,
    ),
    DemoDataset(
        "demo_table_push", 1.5, 1500, (10, 40), (360, 640), _jpeg(82),
        primary="observation/rgb", action={"": 4},
        state={"observation/effector_translation": 2},
        language=("observation/instruction",), language_kind="codes", shards=12,
    ),
    DemoDataset(
        "demo_play_static", 1.5, 1600, (40, 64), (200, 200), _jpeg(95),
        primary="observation/rgb_static", second=("observation/rgb_gripper", (128, 128)),
        state={"observation/robot_obs": 15}, states_encoding=False,
    ),
    DemoDataset(
        "demo_cable_route", 0.6, 700, (15, 35), (128, 128), _jpeg(95),
        primary="observation/top_image", depth="observation/top_depth",
        state={"observation/robot_state": 7}, has_val=False,
        shards=6,
    ),
    DemoDataset(
        "demo_rack_dishes", 0.8, 900, (30, 60), (480, 640), _jpeg(78), state={},
        action={"world_vector": 3, "rotation_delta": 3, "gripper_closedness_action": 0},
        action_fields=(
            *_GRIPPER_TERMS,
            {"path": "action/gripper_closedness_action", "ops": [{"clip": [0, 1]}, "invert"]},
        ),
        shards=6,
    ),
    DemoDataset(
        "demo_wild_homes", 2.5, 2000, (50, 110), (180, 320), _jpeg(88),
        primary="observation/exterior_image_1_left",
        second=("observation/wrist_image_left", (180, 320)),
        third=("observation/exterior_image_2_left", (90, 160)), idles=True,
        state={
            "observation/cartesian_position": 6, "observation/gripper_position": 1,
        },
        action_dtype="float64",
        language=("language_instruction", "language_instruction_2", "language_instruction_3"),
        shards=8,
    ),
    DemoDataset(
        "demo_sim_drawers", 0.7, 800, (25, 55), (160, 160), _PNG_RENDERED,
        primary="observation/image_main", action={"": 8}, states_encoding=False, shards=4,
    ),
    DemoDataset(
        "demo_spoon_stir", 0.4, 500, (5, 20), (128, 128), _jpeg(90),
        state={"observation/state": 4}, action={"": 4}, has_val=False, standard_names=False,
    ),
    DemoDataset(
        "demo_door_handles", 1.0, 1100, (20, 50), (224, 224), _jpeg(95),
        language=("episode_metadata/language_instruction",),
    ),
    DemoDataset(
        "demo_fruit_baskets", 1.2, 1300, (30, 70), (240, 320), _jpeg(90),
        primary="observation/front_rgb", state={"observation/joint_pos": 7},
    ),
    DemoDataset(
        "demo_tower_stack", 0.9, 900, (16, 48), (300, 300), _jpeg(88), state={},
        action={"world_vector": 3, "rotation_delta": 3, "open_gripper": 1}, has_val=False,
    ),
    DemoDataset(
        "demo_shelf_restock", 1.0, 1000, (40, 90), (360, 640), _jpeg(75),
        primary="observation/images/scene", action={"": 10}, state={"observation/state": 10},
        shards=6,
    ),
    DemoDataset(
        "demo_screw_drive", 0.3, 500, (5, 15), (150, 150), _jpeg(90), language=(),
        state={"observation/state": 6, "observation/force_torque": 6}, action={"": 6},
    ),
    DemoDataset(
        "demo_toy_sort", 1.4, 1300, (20, 60), (256, 256), _jpeg(85),
        primary="observation/image_0", second=("observation/image_wrist", (128, 128)),
    ),
    DemoDataset(
        "demo_cloth_hang", 0.8, 800, (50, 100), (480, 640), _jpeg(80),
        primary="observation/camera_front", action={"left": 7, "right": 7},
        state={"observation/left_pose": 7, "observation/right_pose": 7}, has_val=False, shards=4,
    ),
    DemoDataset(
        "demo_sim_kitchen", 0.5, 500, (30, 60), (240, 320), _PNG_FLAT,
        primary="observation/agentview_rgb", action={"": 7}, shards=4,
    ),
    DemoDataset(
        "demo_peg_insert", 0.4, 600, (10, 30), (128, 128), _jpeg(88, noise=10),
        primary="observation/hand_image", state={"observation/state": 7}, language=(),
    ),
    DemoDataset(
        "demo_button_press", 0.6, 600, (8, 24), (200, 200), _jpeg(85), states_encoding=False,
        action={"": 5}, state={"observation/state": 5},
    ),
    DemoDataset(
        "demo_bottle_pour", 1.1, 1000, (30, 80), (256, 320), _jpeg(92),
        second=("observation/hand_image", (128, 128)), has_val=False,
    ),
    DemoDataset(
        "demo_mug_rearrange", 0.9, 1000, (20, 45), (224, 224), _jpeg(85),
        action={"world_vector": 3, "rotation_delta": 3, "open_gripper": 1},
        state={"observation/ee_pose": 6, "observation/gripper": 0},
        language=("observation/instruction",), language_kind="codes",
    ),
    DemoDataset(
        "demo_hallway_drive", 0.7, 900, (20, 60), (240, 320), _jpeg(80),
        state={"observation/position": 2, "observation/yaw": 0}, action={"": 4},
    ),
    DemoDataset(
        "demo_rope_untie", 0.5, 600, (25, 55), (300, 400), _jpeg(85),
        primary="observation/overhead", second=("observation/side", (240, 320)), has_val=False,
        state={},
    ),
    DemoDataset(
        "demo_plant_water", 0.6, 600, (15, 45), (256, 256), _jpeg(95, noise=4),
        primary="observation/rgb_camera", action={"": 9}, state={"observation/state": 9},
    ),
    DemoDataset(
        "demo_lid_open", 0.8, 700, (10, 50), (192, 256), _jpeg(90),
        primary="observation/image_2", action={"": 8},
    ),
    DemoDataset(
        "demo_workbench_tools", 1.3, 1300, (40, 120), (480, 640), _jpeg(82),
        primary="observation/agent_image", second=("observation/hand_image", (224, 224)),
        action={"": 12}, state={"observation/state": 12}, shards=8,
    ),
)  # fmt: skip
"""The whole mixture, in the order in which ``mix.yaml`` lists it."""
