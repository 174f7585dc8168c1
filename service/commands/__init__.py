"""Sub-commands of `antiphon`, one file each."""
