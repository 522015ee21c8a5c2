"""The nodes of an agent's graph, one module each, and the modules that several nodes use.

Nodes: `render_system_prompt`, `router` (with `continue_conversation`), `call_model`, `call_tools`
(with `run_tool` for each call) and `sub_agent`.
"""
