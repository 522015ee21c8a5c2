"""The example support desk: a supervisor and two sub-agents, on any model or the offline one.

`agentgraph serve agentgraph_server.support_desk:support` serves it.
"""

from __future__ import annotations

from langchain_core.language_models import BaseChatModel

from agentgraph import Agent, Intent


def refund(reason: str) -> str:
    """Refund a customer who was charged twice or wrongly."""
    return "The charge is refunded; it reaches the account in 3 to 5 days."


def send_invoice(number: str = "latest") -> str:
    """Send a copy of an invoice by mail."""
    return f"Invoice {number} is on its way."


def reset_password(reason: str = "") -> str:
    """Reset a forgotten password: send a link to choose a new one."""
    return "A link to choose a new password is sent; it is good for one hour."


def support_desk(model: BaseChatModel | str | None = None) -> Agent:
    """Return the desk; without a model on that of `AGENTGRAPH_MODEL`, else on the offline one."""
    billing = Agent(
        "billing",
        "Answers billing questions: charges, invoices, refunds.",
        model=model,
        system_prompt="You answer billing questions. Refund only what was charged wrongly.",
        tools=[refund, send_invoice],
    )
    technical = Agent(
        "technical",
        "Solves technical problems: passwords, logins, errors.",
        model=model,
        system_prompt="You solve technical problems, one step at a time.",
        tools=[reset_password],
    )
    return Agent(
        "support",
        "Front desk",
        model=model,
        system_prompt="You are the front desk. Pass each question to the one who can answer it.",
        agents=[billing, technical],
        intents=[Intent("when are you open", "raw", "The desk is always open.")],
    )


support = support_desk()
