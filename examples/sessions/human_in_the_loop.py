"""A human in the loop: no agent speaks until they have answered, or have released it."""

import asyncio
from collections.abc import Sequence

from langchain_core.messages import BaseMessage

from agentgraph import Agent, Envelope, Hub, Team
from agentgraph.phases import ConversationRouter
from agentgraph.testing import ScriptedModel, call
from agentgraph.testing.answers import Scripted


def ask_human(question: str) -> Scripted:
    return call("handoff_conversation", target="human", reason=question, summary=question)


def write(messages: Sequence[BaseMessage]) -> Scripted:
    friendlier = "Friendlier" in messages[-1].text
    return ask_human(
        "May I send 'Sorry for the wait!'?" if friendlier else "Is 'It is late.' fine?"
    )


writer = Agent("writer", "Writes letters", model=ScriptedModel(write))
sender = Agent("sender", "Sends letters", model=ScriptedModel(lambda messages: "It is sent."))
team = Team([writer, sender], ConversationRouter(default_agent_id="writer"))


async def hold() -> list[Envelope]:
    async with await Hub.open(serve=[team]) as hub:
        session = await hub.session(team)
        await session.send("user", "Write an apology for a late parcel.")
        assert (await session.settled()).status == "waiting_human"
        await session.send("user", "Friendlier, please.")  # to whoever asked
        assert (await session.settled()).status == "waiting_human"
        await session.release("sender")  # without a word, and to somebody else
        await session.settled()
        await session.close("sent")
        return await session.history()


def main() -> None:
    for envelope in asyncio.run(hold()):
        words = envelope.text or envelope.event_data.get("reason")
        print(f"{envelope.sequence}. {envelope.sender_id} {envelope.event_type}: {words or '-'}")


if __name__ == "__main__":
    main()
