from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentgraph import Handoff
from agentgraph.errors import ConfigurationError
from agentgraph.phases import ConversationPipeline, ConversationState, PipelineStage
from agentgraph.routing import Script, TransitionGraph
from tests.routing.samples import Envelope, State
from tests.routing.strategies import metadata, scripts, states

PARTICIPANTS = ["discuss", "coder", "reviewer", "writer"]
pipeline = ConversationPipeline(
    [
        PipelineStage("analysis", "discuss", "coding"),
        PipelineStage("coding", "coder", "review"),
        PipelineStage("review", "reviewer", "report", {"coding"}),
        PipelineStage("report", "writer"),
    ]
)


def faults(*stages: Any, **options: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        ConversationPipeline(stages, **options)
    assert caught.value.code == "pipeline"
    return caught.value.faults


def test_stages_follow_each_other_and_the_last_one_ends_it() -> None:
    played = pipeline.to_graph().simulate([], participants=PARTICIPANTS)

    assert played.speakers == ("discuss", "coder", "reviewer", "writer")
    assert [step.decision.phase for step in played.steps] == ["coding", "review", "report", None]
    assert played.close_reason == "pipeline_complete"


def test_maps_say_who_works_where_and_where_it_may_go() -> None:
    assert pipeline.get_phase_map() == {
        "discuss": "analysis",
        "coder": "coding",
        "reviewer": "review",
        "writer": "report",
    }
    assert pipeline.get_allowed_transitions() == {
        "analysis": {"coding"},
        "coding": {"review"},
        "review": {"report", "coding"},
        "report": set(),
    }


def test_conversation_begins_in_the_pipeline_s_own_first_phase() -> None:
    late = ConversationPipeline(pipeline.stages, default_phase="review")

    assert pipeline.initial_state() == ConversationState("analysis")
    assert late.initial_state().phase == "review"
    played = late.to_graph().simulate([], participants=PARTICIPANTS, phase="review")
    assert played.speakers == ("reviewer", "writer")


def test_phase_that_is_none_of_its_own_counts_as_its_first() -> None:
    for phase in ("intake", "elsewhere"):
        played = pipeline.to_graph().simulate([], participants=PARTICIPANTS, phase=phase)
        assert played.speakers == ("discuss", "coder", "reviewer", "writer")


def test_handoff_goes_back_and_the_flow_goes_on_from_there() -> None:
    script = {"reviewer": [Handoff("coder", next_phase="coding")]}

    played = pipeline.to_graph().simulate(script, participants=PARTICIPANTS)

    assert played.speakers == ("discuss", "coder", "reviewer", "coder", "reviewer", "writer")


def test_agent_outside_its_phase_gives_the_floor_back_to_the_phase_s_agent() -> None:
    script = {"reviewer": [Handoff("coder")]}

    played = pipeline.to_graph().simulate(script, participants=PARTICIPANTS)

    assert played.speakers == ("discuss", "coder", "reviewer", "coder", "reviewer", "writer")
    lost = pipeline.to_graph().resolve(
        State(tuple(PARTICIPANTS), phase="elsewhere", active_agent="coder"), Envelope("coder")
    )
    assert lost.next_speaker == "discuss"


def test_stage_that_follows_itself_keeps_the_floor_until_a_handoff() -> None:
    loops = ConversationPipeline(
        [PipelineStage("chat", "discuss", "chat", {"report"}), PipelineStage("report", "writer")]
    )
    script: Script = {"discuss": ["", "", Handoff("writer", next_phase="report")]}

    played = loops.to_graph().simulate(script, participants=["discuss", "writer"])
    endless = loops.to_graph().simulate([], participants=["discuss", "writer"], turns=200)

    assert played.speakers == ("discuss", "discuss", "discuss", "writer")
    assert (len(endless.steps), endless.close_reason) == (100, "pipeline_complete")


def test_circle_of_stages_is_bounded_too() -> None:
    stages = [
        PipelineStage("draft", "writer", "review"),
        PipelineStage("review", "reviewer", "draft", ["done"]),
        PipelineStage("done", "discuss"),
    ]

    def turns(**options: Any) -> int:
        graph = ConversationPipeline(stages, **options).to_graph()
        return len(graph.simulate([], participants=PARTICIPANTS, turns=200).steps)

    assert turns() == 100
    assert turns(max_turns=7) == 7


def test_max_turns_is_taken_as_it_is_given() -> None:
    none = ConversationPipeline(pipeline.stages, max_turns=0).to_graph()

    assert [finding.code for finding in none.check(PARTICIPANTS)] == ["max_turns"]
    assert pipeline.to_graph().max_turns is None


def test_router_picks_the_phase_s_agent_and_the_first_where_the_phase_is_none() -> None:
    router = ConversationPipeline(pipeline.stages, supervisor_id="watch").to_router()

    def picked(phase: str) -> str | None:
        return router.select_agent(State(tuple(PARTICIPANTS), phase=phase), Envelope("user"))

    assert [picked(phase) for phase in ("coding", "review", "elsewhere")] == [
        "coder",
        "reviewer",
        "discuss",
    ]
    assert router.supervisor_id == "watch"


def test_graph_is_clean_and_comes_back() -> None:
    graph = pipeline.to_graph()

    assert graph.check(PARTICIPANTS) == ()
    assert TransitionGraph.loads(graph.dumps()) == graph
    single = ConversationPipeline([PipelineStage("only", "writer")]).to_graph()
    assert single.check(["writer"]) == ()
    assert single.simulate([], participants=["writer"]).speakers == ("writer",)


def test_all_faults_are_told_at_once() -> None:
    found = faults(
        PipelineStage("one", "a", "two"),
        PipelineStage("one", "b", "three", ["four"]),
        PipelineStage("two", "a"),
        supervisor_id="b",
        default_phase="five",
    )

    assert found == (
        "the phase 'one' is there 2 times",
        "'a' has 2 stages: by its phase nobody could tell them apart",
        "'one': next='three' is no phase: there are one, one, two",
        "'one': can_return_to has 'four', which is no phase: there are one, one, two",
        "default_phase='five' is no phase: there are one, one, two",
        "the supervisor 'b' is the agent of a stage",
    )


def test_pipeline_needs_stages() -> None:
    assert faults() == ("a pipeline has at least one stage",)
    assert faults("one", None) == ("'one' is no PipelineStage", "None is no PipelineStage")


def test_pipeline_must_be_able_to_end() -> None:
    round_about = (PipelineStage("one", "a", "two"), PipelineStage("two", "b", "one"))

    assert faults(*round_about)[0].startswith("from 'one' no stage is reached that ends")
    assert faults(*round_about, PipelineStage("three", "c"))[0].startswith("from 'one' no stage")
    assert ConversationPipeline(
        [*round_about[:1], PipelineStage("two", "b", "two", ["three"]), PipelineStage("three", "c")]
    )


@st.composite
def pipelines(draw: st.DrawFn) -> ConversationPipeline:
    phases = draw(st.permutations(["intake", "work", "elsewhere"]))[: draw(st.integers(1, 3))]
    some = st.sampled_from(phases)
    stages = [
        PipelineStage(
            phase, agent, draw(st.none() | some), draw(st.lists(some, max_size=2, unique=True))
        )
        for phase, agent in zip(phases, "abc", strict=False)
    ]
    stages[-1] = PipelineStage(phases[-1], stages[-1].agent_id)
    stages[0] = PipelineStage(phases[0], "a", stages[0].next, [phases[-1]])
    return ConversationPipeline(stages, default_phase=draw(st.none() | st.just(phases[0])))


@settings(max_examples=200)
@given(pipelines(), scripts(), st.sampled_from(["intake", "work", "other"]))
def test_any_pipeline_ends_or_waits(
    any_pipeline: ConversationPipeline, script: Any, phase: str
) -> None:
    agents = [stage.agent_id for stage in any_pipeline.stages]
    graph = any_pipeline.to_graph()

    played = graph.simulate(script, participants=agents, phase=phase, turns=200)

    assert not [f for f in graph.check(agents) if f.severity == "error"]
    assert (played.close_reason is None) != (played.waiting_for is None)


outside = st.builds(Envelope, st.sampled_from(["user", "guest"]), st.just({}), metadata)


@settings(max_examples=200)
@given(pipelines(), states, outside)
def test_inputs_are_routed_as_the_router_does(
    any_pipeline: ConversationPipeline, state: State, envelope: Envelope
) -> None:
    asked = State(
        state.participant_order,
        phase=state.phase,
        active_agent=state.active_agent,
        context_vars=state.context_vars,
    )

    decision = any_pipeline.to_graph().resolve(asked, envelope)

    picked = any_pipeline.to_router().select_agent(asked, envelope)
    assert decision.action == ("wait" if picked is None else "speak")
    assert decision.next_speaker == (picked or "user")
