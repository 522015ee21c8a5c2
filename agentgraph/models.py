from __future__ import annotations


def resolve_model(model):
    return model


def price_of(name, usage):
    return None
