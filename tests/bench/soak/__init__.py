"""Fronts over engines that come, go, fail and lie for minutes, while clients check every answer they get."""
