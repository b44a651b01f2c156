from waystation.planners.base_planner import BasePlanner
from waystation.planners.built_in_planner import BuiltInPlanner

__all__ = ["BasePlanner", "BuiltInPlanner"]
