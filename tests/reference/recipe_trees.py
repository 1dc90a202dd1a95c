"""The public feature trees of the datasets that recipes exist for, as dataset cards have them.

A tree is a line of features: ``path shape type``, apart by semicolons. Shapes are as ``3`` or
``2x3`` (``-`` for a scalar); types are NumPy's short names, ``f4`` where none is given, ``zf4``
for a tensor that is stored compressed, ``j`` and ``p`` for a JPEG or PNG of height x width, ``s``
for text. Paths of an episode begin with ``/``.
"""

_STEP = "is_first - ?; is_last - ?; is_terminal - ?; reward -"
_NLI = "observation/natural_language_instruction - s; observation/natural_language_embedding 512"
_OLD = f"{_STEP}; {_NLI}"
_NEW = (
    f"{_STEP}; discount -; language_embedding 512; language_instruction - s; "
    "/episode_metadata/file_path - s"
)
_ROBOT = "action/world_vector 3; action/rotation_delta 3"
_GOOGLE = (
    f"{_ROBOT}; action/gripper_closedness_action 1; action/base_displacement_vector 2; "
    "action/base_displacement_vertical_rotation 1; action/terminate_episode 3 i4"
)
_GCA = f"{_ROBOT}; action/gripper_closedness_action 1; action/terminate_episode -"
_SCALAR_GCA = f"{_ROBOT}; action/gripper_closedness_action -; action/terminate_episode -"


def _o(features: str) -> str:
    """Features below ``observation/``."""
    return "; ".join(f"observation/{one.strip()}" for one in features.split(";"))


def _new(action: int, state: int, images: str, more: str = "") -> str:
    observation = (f"state {state}; " if state else "") + images
    return f"action {action}; {_o(observation)}; {_NEW}" + (f"; {more}" if more else "")


_TWO = "image {0} p; wrist_image {0} p"
_PR2 = _new(8, 7, "image 128x128 p")
_LIBERO = _new(7, 8, "joint_state 7; image 256x256 j; wrist_image 256x256 j")
_ALOHA1 = _new(
    14, 14, "image 256x256 j; left_wrist_image 256x256 j; right_wrist_image 256x256 j; "
    "low_cam_image 256x256 j",
)  # fmt: skip
_GNM = (
    "action 2 f8; action_angle 3 f8; "
    + _o("position 2 f8; state 3 f8; yaw 1 f8; image {} p")
    + f"; {_NEW}"
)
_PACKED = "zf4"
_CONVERTED = "_converted_externally_to_rlds"

TREES: dict[str, str] = {
    "fractal20220817_data": f"{_GOOGLE}; {_OLD}; "
    + _o(
        "base_pose_tool_reached 7; gripper_closed 1; gripper_closedness_commanded 1; "
        "height_to_bottom 1; orientation_box 2x3; orientation_start 4; "
        "robot_orientation_positions_box 3x3; rotation_delta_to_go 3; src_rotation 4; "
        "vector_to_go 3; workspace_bounds 3x3; image 256x320 j"
    )
    + "; /aspects/success - ?; /aspects/feasible - ?",
    "kuka": f"{_GOOGLE}; {_OLD}; "
    + _o(
        f"clip_function_input/base_pose_tool_reached 7 {_PACKED}; "
        f"clip_function_input/workspace_bounds 3x3; gripper_closed 1 {_PACKED}; "
        "height_to_bottom 1; task_id 1; image 512x640 j"
    )
    + "; /success - ?",
    "bridge_dataset": _new(
        7,
        7,
        "image_0 256x256 j; image_1 256x256 j; image_2 256x256 j; image_3 256x256 j",
        "/episode_metadata/has_image_0 - ?; /episode_metadata/has_image_1 - ?; "
        "/episode_metadata/has_language - ?; /episode_metadata/episode_id - i4",
    ),
    "bridge": f"{_ROBOT}; action/open_gripper - ?; action/terminate_episode -; {_OLD}; "
    + _o("state 7; image 480x640 p"),
    "taco_play": "action/actions 7; action/rel_actions_gripper 7; action/rel_actions_world 7; "
    f"action/terminate_episode -; {_OLD}; "
    + _o(
        "robot_obs 15; depth_static 150x200; depth_gripper 84x84; rgb_static 150x200 p; "
        "rgb_gripper 84x84 p; structured_language_instruction - s"
    ),
    "jaco_play": "action/world_vector 3; action/gripper_closedness_action 1; "
    f"action/terminate_episode 3 i4; {_OLD}; "
    + _o(
        "end_effector_cartesian_pos 7; end_effector_cartesian_velocity 6; joint_pos 8; "
        "image 224x224 p; image_wrist 224x224 p"
    ),
    "berkeley_cable_routing": f"{_ROBOT}; action/terminate_episode -; {_OLD}; "
    + _o(
        "robot_state 7; image 128x128 p; top_image 128x128 p; wrist45_image 128x128 p; "
        "wrist225_image 128x128 p"
    ),
    "roboturk": f"{_GCA}; {_OLD}; " + _o("front_rgb 480x640 p"),
    "nyu_door_opening_surprising_effectiveness": f"{_GCA}; {_OLD}; " + _o("image 720x960 p"),
    "viola": f"{_SCALAR_GCA}; {_OLD}; "
    + _o(
        "joint_states 7; gripper_states 1; ee_states 16; agentview_rgb 224x224 p; "
        "eye_in_hand_rgb 224x224 p"
    ),
    "berkeley_autolab_ur5": f"{_SCALAR_GCA}; {_OLD}; "
    + _o("robot_state 15; image 480x640 p; hand_image 480x640 p"),
    "toto": f"{_ROBOT}; action/open_gripper - ?; action/terminate_episode -; {_OLD}; "
    + _o("state 7; image 480x640 p"),
    "language_table": f"action 2; {_STEP}; /episode_id - s; "
    + _o(
        "effector_translation 2; effector_target_translation 2; rgb 360x640 j; instruction 512 i4"
    ),
    "columbia_cairlab_pusht_real": f"{_SCALAR_GCA}; {_OLD}; "
    + _o("robot_state 2; image 240x320 p; wrist_image 240x320 p"),
    f"stanford_kuka_multimodal_dataset{_CONVERTED}": f"action 4; {_NEW}; "
    + _o(
        "ee_position 3; ee_orientation 4; state 8; joint_pos 7; joint_vel 7; ee_vel 3; "
        "ee_orientation_vel 3; ee_yaw 4; ee_yaw_delta 4; contact 50; ee_forces_continuous 50x6; "
        "optical_flow 128x128x2; depth_image 128x128x1; image 128x128 p"
    ),
    f"nyu_rot_dataset{_CONVERTED}": _new(7, 7, "image 84x84 p"),
    f"stanford_hydra_dataset{_CONVERTED}": _new(7, 27, _TWO.format("240x320"), "is_dense - ?"),
    f"austin_buds_dataset{_CONVERTED}": _new(7, 24, _TWO.format("128x128")),
    f"nyu_franka_play_dataset{_CONVERTED}": _new(
        15,
        13,
        "depth 128x128x1 i4; depth_additional_view 128x128x1 i4; image 128x128 p; "
        "image_additional_view 128x128 p",
    ),
    f"maniskill_dataset{_CONVERTED}": _new(
        7,
        18,
        "tcp_pose 7; base_pose 7; " + _TWO.format("256x256"),
        "/episode_metadata/episode_id - s",
    ),
    f"furniture_bench_dataset{_CONVERTED}": _new(
        8, 35, "image 224x224 j; wrist_image 224x224 j", "skill_completion -"
    ),
    f"cmu_franka_exploration_dataset{_CONVERTED}": _new(
        8, 0, "highres_image 480x640 p; image 64x64 p", "structured_action 8"
    ),
    f"ucsd_kitchen_dataset{_CONVERTED}": _new(8, 21, "image 480x640 p"),
    f"ucsd_pick_and_place_dataset{_CONVERTED}": _new(
        4,
        7,
        "image 224x224 p",
        "/episode_metadata/success - ?; /episode_metadata/n_transitions - i4",
    ),
    f"austin_sailor_dataset{_CONVERTED}": _new(
        7, 8, "state_ee 16; state_gripper 1; state_joint 7; " + _TWO.format("128x128")
    ),
    f"austin_sirius_dataset{_CONVERTED}": _new(
        7,
        8,
        "state_ee 16; state_gripper 1; state_joint 7; " + _TWO.format("84x84"),
        "action_mode 1; intv_label 1",
    ),
    "bc_z": "action/future/xyz_residual 30; action/future/axis_angle_residual 30; "
    f"action/future/target_close 10 i8; {_OLD}; "
    + _o(
        "present/xyz 3; present/axis_angle 3; present/sensed_close 1; sequence_length - i8; "
        "episode_success -; image 171x213 j"
    ),
    f"utokyo_pr2_opening_fridge{_CONVERTED}": _PR2,
    f"utokyo_pr2_tabletop_manipulation{_CONVERTED}": _PR2,
    f"utokyo_xarm_pick_and_place{_CONVERTED}": _new(
        7,
        0,
        "end_effector_pose 6; joint_state 14; joint_trajectory 21; image 224x224 p; "
        "image2 224x224 p; hand_image 224x224 p",
    ),
    f"utokyo_xarm_bimanual{_CONVERTED}": _new(
        14, 0, "pose_l 6; pose_r 6; action_l 7; action_r 7; image 256x256 p"
    ),
    "robo_net": _new(5, 5, "image 240x320 j; image1 240x320 j; image2 240x320 j"),
    f"berkeley_mvp{_CONVERTED}": _new(
        8, 0, "pose 7; joint_pos 7; gripper - ?; hand_image 480x640 p"
    ),
    f"berkeley_rpt{_CONVERTED}": _new(8, 0, "joint_pos 7; gripper - ?; hand_image 480x640 p"),
    f"kaist_nonprehensile{_CONVERTED}": _new(20, 21, "partial_pointcloud 512x3; image 480x640 p"),
    f"stanford_mask_vit{_CONVERTED}": _new(
        5, 15, "end_effector_pose 5; finger_sensors 1; high_bound 5; low_bound 5; image 480x480 p"
    ),
    f"tokyo_u_lsmo{_CONVERTED}": _new(7, 13, "image 120x120 p"),
    f"dlr_sara_pour{_CONVERTED}": _new(7, 6, "image 480x640 p"),
    f"dlr_sara_grid_clamp{_CONVERTED}": _new(7, 12, "image 480x640 p"),
    f"dlr_edan_shared_control{_CONVERTED}": _new(7, 7, "image 360x640 p"),
    f"asu_table_top{_CONVERTED}": _new(
        7,
        7,
        "state_vel 7; image 224x224 p",
        "action_delta 7; ground_truth_states/EE 6; ground_truth_states/bottle 6; "
        "action_inst - s; goal_object - s",
    ),
    f"stanford_robocook{_CONVERTED}": _new(
        7,
        7,
        "depth_1 256x256; image_1 256x256 j; image_2 256x256 j; image_3 256x256 j; "
        "image_4 256x256 j",
        "/episode_metadata/extrinsics_1 4x4",
    ),
    "imperialcollege_sawyer_wrist_cam": _new(8, 1, _TWO.format("64x64")),
    f"iamlab_cmu_pickup_insert{_CONVERTED}": _new(8, 20, "image 360x640 p; wrist_image 240x320 p"),
    "uiuc_d3field": "action 3; "
    + _o("state 4x4; image_1 360x640 p; image_2 360x640 p; image_3 360x640 p; image_4 360x640 p")
    + f"; {_NEW}",
    "utaustin_mutex": _new(7, 24, _TWO.format("128x128")),
    "berkeley_fanuc_manipulation": _new(6, 13, "end_effector_state 7; " + _TWO.format("224x224")),
    "cmu_play_fusion": _new(9, 8, "image 128x128 p"),
    "cmu_stretch": _new(8, 4, "image 128x128 p"),
    "berkeley_gnm_recon": _GNM.format("120x160"),
    "berkeley_gnm_cory_hall": _GNM.format("64x85"),
    "berkeley_gnm_sac_son": _GNM.format("120x160"),
    "aloha_mobile_dataset": _new(
        16, 14, "cam_high 480x640 j; cam_left_wrist 480x640 j; cam_right_wrist 480x640 j"
    ),
    "droid": "action 7 f8; action_dict/cartesian_position 6 f8; "
    "action_dict/cartesian_velocity 6 f8; action_dict/joint_position 7 f8; "
    "action_dict/joint_velocity 7 f8; "
    "action_dict/gripper_position 1 f8; action_dict/gripper_velocity 1 f8; "
    + _o(
        "cartesian_position 6 f8; joint_position 7 f8; gripper_position 1 f8; "
        "exterior_image_1_left 180x320 j; exterior_image_2_left 180x320 j; "
        "wrist_image_left 180x320 j"
    )
    + f"; {_STEP}; discount -; language_instruction - s; language_instruction_2 - s; "
    "language_instruction_3 - s; /episode_metadata/file_path - s; "
    "/episode_metadata/recording_folderpath - s",
    "fmb_dataset": "action 7; "
    + _o(
        "eef_pose 7; state_gripper_pose -; eef_vel 6; eef_force 3; eef_torque 3; joint_pos 7; "
        "joint_vel 7; image_side_1 256x256 j; image_side_2 256x256 j; image_wrist_1 256x256 j; "
        "image_side_1_depth 256x256; length - s; primitive - s; size - s"
    )
    + f"; {_NEW}",
    "dobbe": _new(7, 7, "xyz 3; rot 3; quat 4; gripper 1; wrist_image 256x256 j"),
    "libero_spatial_no_noops": _LIBERO,
    "libero_object_no_noops": _LIBERO,
    "libero_goal_no_noops": _LIBERO,
    "libero_10_no_noops": _LIBERO,
    "aloha1_put_X_into_pot_300_demos": _ALOHA1,
    "aloha1_fold_shorts_20_demos": _ALOHA1,
    "aloha1_fold_shirt_30_demos": _ALOHA1,
    "aloha1_scoop_X_into_bowl_45_demos": _ALOHA1,
}
