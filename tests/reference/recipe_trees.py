"""The public feature trees of the datasets that recipes exist for, as dataset cards have them.

A tree is a line of features: ``path shape type``, apart by semicolons. Shapes are as ``3`` or
``2x3`` (``-`` for a scalar); types are NumPy's short names, ``f4`` where none is given, ``zf4``
for a tensor that is stored compressed, ``j`` and ``p`` for a JPEG or PNG of height x width, ``s``
for text. Paths of an episode begin with ``/``.
"""

import re

_STEP = "is_first - ?; is_last - ?; is_terminal - ?; reward -"
_SHARED = {
    "step": _STEP,
    "old": f"{_STEP}; observation/natural_language_instruction - s; "
    "observation/natural_language_embedding 512",
    "new": f"{_STEP}; discount -; language_embedding 512; language_instruction - s; "
    "/episode_metadata/file_path - s",
    "robot": "action/world_vector 3; action/rotation_delta 3",
    "google": "action/world_vector 3; action/rotation_delta 3; "
    "action/gripper_closedness_action 1; action/base_displacement_vector 2; "
    "action/base_displacement_vertical_rotation 1; action/terminate_episode 3 i4",
}
_TREES = """\
fractal20220817_data: old google | base_pose_tool_reached 7;
  gripper_closed+gripper_closedness_commanded+height_to_bottom 1; orientation_box 2x3;
  orientation_start 4; robot_orientation_positions_box 3x3; rotation_delta_to_go 3; src_rotation 4;
  vector_to_go 3; workspace_bounds 3x3; image 256x320 j | /aspects/success+/aspects/feasible - ?
kuka: old google | clip_function_input/base_pose_tool_reached 7 zf4;
  clip_function_input/workspace_bounds 3x3; gripper_closed 1 zf4; height_to_bottom+task_id 1;
  image 512x640 j | /success - ?
bridge_dataset: new | state 7; image_0+image_1+image_2+image_3 256x256 j | action 7;
  /episode_metadata/has_image_0+/episode_metadata/has_image_1 - ?;
  /episode_metadata/has_language - ?; /episode_metadata/episode_id - i4
bridge toto: old robot | state 7; image 480x640 p | action/open_gripper - ?;
  action/terminate_episode -
taco_play: old | robot_obs 15; depth_static 150x200; depth_gripper 84x84; rgb_static 150x200 p;
  rgb_gripper 84x84 p; structured_language_instruction - s |
  action/actions+action/rel_actions_gripper+action/rel_actions_world 7; action/terminate_episode -
jaco_play: old | end_effector_cartesian_pos 7; end_effector_cartesian_velocity 6; joint_pos 8;
  image+image_wrist 224x224 p | action/world_vector 3; action/gripper_closedness_action 1;
  action/terminate_episode 3 i4
berkeley_cable_routing: old robot | robot_state 7;
  image+top_image+wrist45_image+wrist225_image 128x128 p | action/terminate_episode -
roboturk: old robot | front_rgb 480x640 p | action/gripper_closedness_action 1;
  action/terminate_episode -
nyu_door_opening_surprising_effectiveness: old robot | image 720x960 p |
  action/gripper_closedness_action 1; action/terminate_episode -
viola: old robot | joint_states 7; gripper_states 1; ee_states 16;
  agentview_rgb+eye_in_hand_rgb 224x224 p |
  action/gripper_closedness_action+action/terminate_episode -
berkeley_autolab_ur5: old robot | robot_state 15; image+hand_image 480x640 p |
  action/gripper_closedness_action+action/terminate_episode -
language_table: step | effector_translation+effector_target_translation 2; rgb 360x640 j;
  instruction 512 i4 | action 2; /episode_id - s
columbia_cairlab_pusht_real: old robot | robot_state 2; image+wrist_image 240x320 p |
  action/gripper_closedness_action+action/terminate_episode -
stanford_kuka_multimodal_dataset*: new | ee_position 3; ee_orientation 4; state 8;
  joint_pos+joint_vel 7; ee_vel+ee_orientation_vel 3; ee_yaw+ee_yaw_delta 4; contact 50;
  ee_forces_continuous 50x6; optical_flow 128x128x2; depth_image 128x128x1; image 128x128 p |
  action 4
nyu_rot_dataset*: new | state 7; image 84x84 p | action 7
stanford_hydra_dataset*: new | state 27; image+wrist_image 240x320 p | action 7; is_dense - ?
austin_buds_dataset* utaustin_mutex: new | state 24; image+wrist_image 128x128 p | action 7
nyu_franka_play_dataset*: new | state 13; depth+depth_additional_view 128x128x1 i4;
  image+image_additional_view 128x128 p | action 15
maniskill_dataset*: new | state 18; tcp_pose+base_pose 7; image+wrist_image 256x256 p | action 7;
  /episode_metadata/episode_id - s
furniture_bench_dataset*: new | state 35; image+wrist_image 224x224 j | action 8; skill_completion -
cmu_franka_exploration_dataset*: new | highres_image 480x640 p; image 64x64 p |
  action+structured_action 8
ucsd_kitchen_dataset*: new | state 21; image 480x640 p | action 8
ucsd_pick_and_place_dataset*: new | state 7; image 224x224 p | action 4;
  /episode_metadata/success - ?; /episode_metadata/n_transitions - i4
austin_sailor_dataset*: new | state 8; state_ee 16; state_gripper 1; state_joint 7;
  image+wrist_image 128x128 p | action 7
austin_sirius_dataset*: new | state 8; state_ee 16; state_gripper 1; state_joint 7;
  image+wrist_image 84x84 p | action 7; action_mode+intv_label 1
bc_z: old | present/xyz+present/axis_angle 3; present/sensed_close 1; sequence_length - i8;
  episode_success -; image 171x213 j |
  action/future/xyz_residual+action/future/axis_angle_residual 30; action/future/target_close 10 i8
utokyo_pr2_opening_fridge* utokyo_pr2_tabletop_manipulation*: new | state 7; image 128x128 p |
  action 8
utokyo_xarm_pick_and_place*: new | end_effector_pose 6; joint_state 14; joint_trajectory 21;
  image+image2+hand_image 224x224 p | action 7
utokyo_xarm_bimanual*: new | pose_l+pose_r 6; action_l+action_r 7; image 256x256 p | action 14
robo_net: new | state 5; image+image1+image2 240x320 j | action 5
berkeley_mvp*: new | pose+joint_pos 7; gripper - ?; hand_image 480x640 p | action 8
berkeley_rpt*: new | joint_pos 7; gripper - ?; hand_image 480x640 p | action 8
kaist_nonprehensile*: new | state 21; partial_pointcloud 512x3; image 480x640 p | action 20
stanford_mask_vit*: new | state 15; end_effector_pose 5; finger_sensors 1; high_bound+low_bound 5;
  image 480x480 p | action 5
tokyo_u_lsmo*: new | state 13; image 120x120 p | action 7
dlr_sara_pour*: new | state 6; image 480x640 p | action 7
dlr_sara_grid_clamp*: new | state 12; image 480x640 p | action 7
dlr_edan_shared_control*: new | state 7; image 360x640 p | action 7
asu_table_top*: new | state+state_vel 7; image 224x224 p | action+action_delta 7;
  ground_truth_states/EE+ground_truth_states/bottle 6; action_inst+goal_object - s
stanford_robocook*: new | state 7; depth_1 256x256; image_1+image_2+image_3+image_4 256x256 j |
  action 7; /episode_metadata/extrinsics_1 4x4
imperialcollege_sawyer_wrist_cam: new | state 1; image+wrist_image 64x64 p | action 8
iamlab_cmu_pickup_insert*: new | state 20; image 360x640 p; wrist_image 240x320 p | action 8
uiuc_d3field: new | state 4x4; image_1+image_2+image_3+image_4 360x640 p | action 3
berkeley_fanuc_manipulation: new | state 13; end_effector_state 7; image+wrist_image 224x224 p |
  action 6
cmu_play_fusion: new | state 8; image 128x128 p | action 9
cmu_stretch: new | state 4; image 128x128 p | action 8
berkeley_gnm_recon berkeley_gnm_sac_son: new | position 2 f8; state 3 f8; yaw 1 f8;
  image 120x160 p | action 2 f8; action_angle 3 f8
berkeley_gnm_cory_hall: new | position 2 f8; state 3 f8; yaw 1 f8; image 64x85 p | action 2 f8;
  action_angle 3 f8
aloha_mobile_dataset: new | state 14; cam_high+cam_left_wrist+cam_right_wrist 480x640 j | action 16
droid: step | cartesian_position 6 f8; joint_position 7 f8; gripper_position 1 f8;
  exterior_image_1_left+exterior_image_2_left+wrist_image_left 180x320 j | action 7 f8;
  action_dict/cartesian_position+action_dict/cartesian_velocity 6 f8;
  action_dict/joint_position+action_dict/joint_velocity 7 f8;
  action_dict/gripper_position+action_dict/gripper_velocity 1 f8; discount -;
  language_instruction+language_instruction_2+language_instruction_3 - s;
  /episode_metadata/file_path+/episode_metadata/recording_folderpath - s
fmb_dataset: new | eef_pose 7; state_gripper_pose -; eef_vel 6; eef_force+eef_torque 3;
  joint_pos+joint_vel 7; image_side_1+image_side_2+image_wrist_1 256x256 j;
  image_side_1_depth 256x256; length+primitive+size - s | action 7
dobbe: new | state 7; xyz+rot 3; quat 4; gripper 1; wrist_image 256x256 j | action 7
libero_spatial_no_noops libero_object_no_noops libero_goal_no_noops libero_10_no_noops: new |
  state 8; joint_state 7; image+wrist_image 256x256 j | action 7
aloha1_put_X_into_pot_300_demos aloha1_fold_shorts_20_demos aloha1_fold_shirt_30_demos
  aloha1_scoop_X_into_bowl_45_demos: new | state 14;
  image+left_wrist_image+right_wrist_image+low_cam_image 256x256 j | action 14
"""
"""Names (``*``: _converted_externally_to_rlds): shared features | of the observation | others.

Features of the same shape and type are joined by ``+``.
"""


def _spread(features: str, below: str = "") -> str:
    joined = (one.split(" ", 1) for one in features.split("; "))
    return "; ".join(f"{below}{path} {kind}" for paths, kind in joined for path in paths.split("+"))


def _trees() -> dict[str, str]:
    found = {}
    for entry in re.split(r"\n(?! )", _TREES.rstrip()):
        names, tree = " ".join(entry.split()).split(": ")
        shared, observation, others = tree.split(" | ")
        parts = [*map(_SHARED.__getitem__, shared.split()), _spread(observation, "observation/")]
        tree = "; ".join([*parts, _spread(others)])
        found |= dict.fromkeys(names.replace("*", "_converted_externally_to_rlds").split(), tree)
    return found


TREES = _trees()
