"""What a flow is given, and what its models answer: texts, messages, images, JSON in words."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.runtime import get_runtime

from agentgraph import Agent
from agentgraph.flow import Brief, Flow, Plan, Verdict
from agentgraph.testing import ScriptedModel, call
from tests.flow.planned_work import flow_of, guarded, plan, requests, verdict, worker

IMAGE = {"type": "image", "base64": "AAAA", "mime_type": "image/png"}


def contents(agent: Any) -> list[Any]:
    """Return the contents of what an agent's model was asked."""
    return [request.messages[-1].content for request in agent.model.requests]


async def test_images_of_the_task_are_shown_to_who_plans_works_and_judges() -> None:
    flow = flow_of(plan("a"), "ok", verdict())
    result = await flow.ainvoke([{"type": "text", "text": "What is it?"}, IMAGE])
    assert result.status == "finished"
    asked = [*contents(flow.supervisor), *contents(flow.workers["a"])]
    assert len(asked) == 4
    assert all(content[-1] == IMAGE for content in asked)
    assert asked[-1][0]["text"] == "work of a"


async def test_task_may_be_an_image_alone() -> None:
    a = worker("a")
    flow: Flow[Any] = Flow("f", work=[a], guards=guarded())
    assert (await flow.ainvoke([IMAGE])).text == "a is done"
    assert contents(a) == [[IMAGE]]


@pytest.mark.parametrize(
    "task",
    [
        "the task",
        HumanMessage("the task"),
        [HumanMessage("hello"), AIMessage("hi"), HumanMessage("the task")],
        {"messages": [("user", "the task")]},
        [{"type": "text", "text": "the task"}],
    ],
)
async def test_last_message_of_the_human_is_the_task(task: Any) -> None:
    def echo(brief: Brief) -> str:
        return brief.task

    flow: Flow[Any] = Flow("f", work=[echo], guards=guarded())
    assert (await flow.ainvoke(task)).text == "the task"


@pytest.mark.parametrize("text", ["日本語 🦊 \u202e", "\ud800 half", "x" * 1_000_000, "{a} %s \\n"])
async def test_text_of_any_kind_passes_through_all_stages(text: str, tmp_path: Any) -> None:
    def echo(brief: Brief) -> str:
        return brief.task

    url = f"sqlite:///{tmp_path / 'flows.db'}"
    flow: Flow[Any] = Flow("f", work=[echo], guards=guarded(), checkpointer=url)
    result = await flow.ainvoke(f"begin {text} end")
    assert result.status == "finished"
    assert result.text.startswith("begin ") and result.text.endswith(" end")


@pytest.mark.parametrize(
    "answer",
    [
        '{"briefs": [{"worker": "a", "task": "t"}]}',
        '```json\n{"briefs": [{"worker": "a", "task": "t"}]}\n```',
        'The {plan}:\n```json\n{"briefs": [{"worker": "a", "task": "t"}]}\n```\nAll {good}.',
        'First ```x = {1}``` then\n```\n{"briefs": [{"worker": "a", "task": "t"}]}\n```',
    ],
)
async def test_planner_may_write_its_plan_as_json_in_markdown(answer: str) -> None:
    flow = flow_of(answer, "ok", '```json\n{"accepted": true, "confidence": 0.9}\n```')
    result = await flow.ainvoke("go")
    assert (result.status, result.replans) == ("finished", 0)
    assert requests(flow.workers["a"]) == ["t"]


async def test_function_may_return_its_plan_and_its_verdict_as_json_in_words() -> None:
    def planned(task: str) -> str:
        return 'By {my} count: {"briefs": [{"worker": "a", "task": "t"}]} {so}'

    def judged(aggregate: Any) -> dict[str, Any]:
        return {"accepted": True}

    flow: Flow[Any] = Flow("f", work=[worker("a")], plan=planned, validate=judged, guards=guarded())
    assert (await flow.ainvoke("go")).status == "finished"


async def test_one_worker_may_have_the_same_brief_twice() -> None:
    a = worker("a")
    flow = flow_of(plan("a", "a"), "ok", verdict(), work=[a])
    result = await flow.ainvoke("go")
    assert result.status == "finished"
    assert len(requests(a)) == 2
    assert len([report for report in result.stages if report.worker == "a"]) == 2


async def test_inputs_at_once_on_one_thread_run_one_after_the_other() -> None:
    at_work: list[str] = []

    async def work(brief: Brief) -> str:
        at_work.append(brief.task)
        assert len(at_work) == 1
        await Flow("inner", work=[_answer], guards=None).ainvoke("go")
        at_work.remove(brief.task)
        return brief.task

    flow: Flow[Any] = Flow("f", work=[work], guards=guarded())
    runs = [flow.ainvoke(f"task {n}", thread_id="t") for n in range(4)]
    results = await asyncio.gather(*runs)
    assert [result.text for result in results] == [f"task {n}" for n in range(4)]
    assert len(await flow.ahistory("t")) == 8


async def _answer(brief: Brief) -> str:
    return "ok"


def test_sync_twins_do_what_the_others_do() -> None:
    flow = flow_of(plan("a"), "doubtful", verdict(True, 0.2), plan("a"), "ok", verdict())
    result = flow.invoke("go", thread_id="t")
    [question] = result.interrupts
    assert flow.resume("t", {question.id: "approve"}).text == "doubtful"
    events = [*flow.stream("go on", thread_id="t")]
    assert getattr(events[-1], "text", "") == "ok"
    assert [str(message.text) for message in flow.history("t")] == [
        "go", "doubtful", "go on", "ok",
    ]  # fmt: skip
    other: Flow[Any] = Flow("f", work=[worker("a")], guards=guarded())
    assert other.run("go").text == "a is done"


async def test_context_reaches_the_tools_of_workers() -> None:
    def who() -> str:
        """Tell who asks."""
        return str(get_runtime().context)

    def says(messages: Any) -> Any:
        return str(messages[-1].text) if messages[-1].type == "tool" else call("who")

    a = Agent("a", model=ScriptedModel(says), tools=[who], default_tools=False)
    flow: Flow[Any] = Flow("f", work=[a], guards=guarded())
    assert (await flow.ainvoke("go", context={"user": "mei"})).text == "{'user': 'mei'}"


async def test_many_waves_end() -> None:
    async def work(brief: Brief) -> str:
        return brief.task

    def planned(task: str) -> Plan:
        return Plan(briefs=tuple(Brief(worker="work", task=str(n)) for n in range(120)))

    flow: Flow[Any] = Flow(
        "f", work=[work], plan=planned, validate=lambda aggregate: Verdict(accepted=True),
        guards=guarded(fan_out=1),
    )  # fmt: skip
    result = await flow.ainvoke("go")
    assert result.text.split("\n\n") == [str(n) for n in range(120)]
