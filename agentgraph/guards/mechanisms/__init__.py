"""The guards: each module is one, with its settings, its memory and how it decides.

They are pure: none knows a policy or a graph. Those of what is spent are in `spending`, those that
check what is said and done in `gates`.
"""
