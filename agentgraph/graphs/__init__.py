"""LangGraph's graphs as this project compiles, routes, reads and shows them."""
