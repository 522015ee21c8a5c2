"""Gates: `gate` runs the checks of a stage; `cedar` and `grounding` make checks to give to one."""
