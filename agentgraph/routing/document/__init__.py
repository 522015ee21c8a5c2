"""A graph as a JSON document: the codec, and the registry of the classes that it may name."""
