"""The nodes of an agent's graph, one module each, and what serves several of them.

Nodes: `render_system_prompt`, `router` (with `continue_conversation`), `call_model`, `call_tools`
(with `run_tool` for each call) and `sub_agent`.
"""
