"""Who drives sessions: the protocol of engines. A hub takes one without knowing which it is."""
