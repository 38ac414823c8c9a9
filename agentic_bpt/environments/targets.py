"""Where the targets of the reaching tasks are, and how near counts (ExoRL's definitions)."""

_Target = tuple[float, float, float]

JACO_TARGET_RADIUS = 0.05  # m; also the margin of the reward
JACO_TARGETS: dict[str, _Target] = {  # m
    "reach_top_left": (-0.09, 0.09, 0.001),
    "reach_top_right": (0.09, 0.09, 0.001),
    "reach_bottom_left": (-0.09, -0.09, 0.001),
    "reach_bottom_right": (0.09, -0.09, 0.001),
}

MAZE_TARGET_RADIUS = 0.015  # m; also the margin of the reward
MAZE_TARGETS: dict[str, _Target] = {  # m; the mass starts in the room at the top left
    "reach_top_left": (-0.15, 0.15, 0.01),
    "reach_top_right": (0.15, 0.15, 0.01),
    "reach_bottom_left": (-0.15, -0.15, 0.01),
    "reach_bottom_right": (0.15, -0.15, 0.01),
}
