"""The guards themselves: each module is one guard, its settings, its memory and what it decides."""
