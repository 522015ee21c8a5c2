"""Gates: the checks themselves, and policies in Cedar and grounding as checks to put into one."""
