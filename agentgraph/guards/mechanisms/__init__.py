"""The guards: each module is one guard, with its settings, its memory and how it decides.

They are pure: no guard knows a policy or a graph. The guards of spending are in `spending`, the
checks of calls and answers in `gates`.
"""
