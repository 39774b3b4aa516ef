"""What the target is asked to write, and the file that it goes to."""

import json
from itertools import count, islice

import pytest
from byte_tokenizer import save_byte_tokenizer
from fake_engine import EOS, CharCodec, FakeEngine

from dspark.engine.errors import EngineError, UsageError
from dspark.engine.jobs.tokenizer import Tokenizer
from dspark.engine.requests import Completion, SpecCounts
from dspark.engine.training.generate import TextBudget, write_texts
from dspark.engine.training.text_file import Text, TextFile, read_texts
from dspark.engine.training.text_source import TextSource, Turns, read_prompts, user_turns

TURNS = Turns(opening=[1, 10], closing=[2, 20, 21])


def source(prompts=(), turns=TURNS, **settings):
    settings = {"temperatures": (1.0, 0.6, 0.0), "max_tokens": 30, "row_tokens": 50} | settings
    return TextSource(list(prompts), turns, stop_ids=frozenset({EOS}), seed=0, **settings)


def answer(request, tokens, reason="stop"):
    return Completion(request.index, tokens, None, reason, None, SpecCounts())


def test_prompts_and_own_questions_alternate_and_prompts_meet_all_temperatures():
    prompts = [[5], [6]]
    asked = list(islice(source(prompts).requests(), 24))
    assert [request.prompt_token_ids for request in asked[1::2]] == [[1, 10]] * 12
    assert all(request.sampling.temperature == 1.0 for request in asked[1::2])
    given = [(tuple(request.prompt_token_ids), request.sampling.temperature) for request in asked[::2]]
    # A greedy answer comes once; later turns of it are sampled.
    assert given == [
        *[((5,), 1.0), ((6,), 0.6), ((5,), 0.6), ((6,), 0.0), ((5,), 0.0), ((6,), 1.0)],
        *[((5,), 1.0), ((6,), 0.6), ((5,), 0.6), ((6,), 1.0), ((5,), 1.0), ((6,), 1.0)],
    ]
    assert len({request.index for request in asked}) == 24


def test_a_finished_question_is_answered_next():
    texts = source()
    requests = texts.requests()
    first = next(requests)
    assert texts.take(answer(first, [7, 8, EOS])) is None
    second = next(requests)
    assert second.prompt_token_ids == [1, 10, 7, 8, 2, 20, 21]
    text = texts.take(answer(second, [9, 9, EOS]))
    assert text == Text([1, 10, 7, 8, 2, 20, 21], [9, 9, EOS], second.sampling.temperature, "question", 0)


@pytest.mark.parametrize(
    ("tokens", "reason", "turns"),
    [([7] * 30, "length", TURNS), ([7] * 29 + [EOS], "stop", TURNS), ([7, EOS], "stop", Turns([1], []))],
    ids=["cut", "no_room_for_an_answer", "no_chat"],
)
def test_a_question_that_cannot_be_answered_is_a_text_by_itself(tokens, reason, turns):
    texts = source(turns=turns)
    request = next(texts.requests())
    text = texts.take(answer(request, tokens, reason))
    assert text == Text(turns.opening, tokens, 1.0, "opening", 0)


def test_texts_fit_into_a_row():
    long = source([[3] * 45], row_tokens=50)
    requests = islice(long.requests(), 6)
    assert all(len(request.prompt_token_ids) + request.sampling.max_tokens <= 50 for request in requests)


def test_without_tokenizer_and_prompts_there_is_nothing_to_ask():
    with pytest.raises(UsageError, match="no tokenizer"):
        source(turns=None)
    assert all(request.index % 2 for request in islice(source([[5]], None).requests(), 4))


def test_turns_are_what_chats_share(tmp_path):
    save_byte_tokenizer(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    turns = user_turns(tokenizer, eos_token_id=2)
    whole = tokenizer.encode_chat([{"role": "user", "content": "Tell me"}])
    assert whole == [*turns.opening, *tokenizer.encode("Tell me"), *turns.closing]
    (tmp_path / "chat_template.jinja").unlink()
    assert user_turns(Tokenizer.load(tmp_path), eos_token_id=2) == Turns([2], [])
    assert user_turns(None, eos_token_id=2) is None


def test_prompts_of_every_form_are_read_and_the_rest_is_counted(tmp_path):
    rows = [
        {"prompt": "abc"},
        {"prompt_token_ids": [4, 5]},
        {"turns": ["x", "y"]},
        {"prompt": ""},
        {"nothing": 1},
        {"prompt": "much too long"},
    ]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prompts = read_prompts(str(tmp_path / "p.jsonl"), CharCodec(), most_tokens=18)
    assert prompts.token_ids[:2] == [[97, 98, 99], [4, 5]]
    assert prompts.token_ids[2] == CharCodec().encode_chat([{"role": "user", "content": "x"}])
    assert (len(prompts.token_ids), prompts.unused) == (4, 2)
    with pytest.raises(UsageError, match=r"no row of .* can be used"):
        read_prompts(str(tmp_path / "p.jsonl"), CharCodec(), most_tokens=1)


class Writer(FakeEngine):
    """Answers with three tokens and the end; breaks off after `lives` answers."""

    def __init__(self, lives=10**9):
        super().__init__(concurrency=3)
        self.lives = lives

    def _answer(self, request):
        self.lives -= 1
        if self.lives < 0:
            raise KeyboardInterrupt
        return answer(request, [50, 51, 52, EOS])


def write(path, engine, *, tokens, resume=False):
    made = []

    def make(done):
        made.append(done)
        return source([[5], [6]], done=done)

    ticks = count()
    progress = write_texts(
        engine,
        make,
        path,
        budget=TextBudget(None, tokens),
        resume=resume,
        report=lambda progress: None,
        clock=lambda: float(next(ticks)),
    )
    return progress, made[0]


def test_texts_are_written_until_the_budget_is_used_and_what_is_begun_is_finished(tmp_path):
    engine = Writer()
    progress, _ = write(tmp_path / "text.jsonl", engine, tokens=41)
    texts = list(read_texts(tmp_path / "text.jsonl"))
    assert (progress.texts, progress.tokens) == (len(texts), 4 * len(texts))
    # Eleven reach the budget; up to two more were being written, or were questions.
    assert 11 <= len(texts) <= 13
    assert not (tmp_path / "text.jsonl.partial").exists()
    assert len(engine.asked) >= len(texts)


def test_an_interrupted_file_goes_on_behind_what_is_there(tmp_path):
    path = tmp_path / "text.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write(path, Writer(lives=6), tokens=100)
    partial = path.with_name("text.jsonl.partial")
    there = list(read_texts(partial))
    assert 0 < len(there) <= 6
    assert not path.exists()
    # Killed in the middle of a line.
    with partial.open("ab") as file:
        file.write(b'{"prompt_token_ids": [1')
    progress, done = write(path, Writer(), tokens=100, resume=True)
    texts = list(read_texts(path))
    assert texts[: len(there)] == there
    assert done == {text.index for text in there}
    indices = [text.index for text in texts]
    assert len(set(indices)) == len(indices)
    # Time counts on, too.
    assert progress.elapsed_s > there[-1].elapsed_s
    assert texts[len(there)].elapsed_s > there[-1].elapsed_s


def test_starting_anew_drops_an_interrupted_file(tmp_path):
    path = tmp_path / "text.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write(path, Writer(lives=3), tokens=100)
    _, done = write(path, Writer(), tokens=20)
    assert not done


def test_a_budget_is_used_by_what_comes_first():
    assert TextBudget(10.0, 100).share_used(5.0, 20) == 0.5
    assert TextBudget(10.0, 100).share_used(5.0, 80) == 0.8
    assert TextBudget(None, 100).share_used(1e9, 50) == 0.5
    assert TextBudget(10.0, None).share_used(5.0, 10**9) == 0.5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nonsense", "line 2 is not JSON"),
        ("[1]", "line 2 is no row of"),
        ('{"prompt_token_ids": [1], "token_ids": [2], "colour": 1}', "line 2 is no row of"),
        ('{"prompt_token_ids": [1]}', "`token_ids` is no list of token ids"),
        ('{"prompt_token_ids": [1], "token_ids": [-2]}', "`token_ids` is no list of token ids"),
        ('{"prompt_token_ids": [1], "token_ids": [2], "temperature": -1}', "`temperature` is no number"),
    ],
    ids=["text", "list", "unknown_key", "no_tokens", "negative", "temperature"],
)
def test_rows_of_another_kind_are_refused_by_line(tmp_path, line, message):
    path = tmp_path / "text.jsonl"
    path.write_text('{"prompt_token_ids": [1], "token_ids": [2]}\n' + line + "\n")
    with pytest.raises(UsageError, match=message):
        list(read_texts(path))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"cannot read .*absent"):
        list(read_texts(tmp_path / "absent"))


def test_a_text_that_was_removed_while_it_was_written_is_said_to_be_lost(tmp_path):
    file = TextFile(tmp_path / "t", resume=False)
    file.partial.unlink()
    with pytest.raises(EngineError, match=r"t\.partial was removed while text was written to it"):
        file.publish()
    file.close()


def test_texts_come_back_as_they_were_written(tmp_path):
    texts = [Text([1], [2, 3], 0.6, "prompt", 4, 1.5), Text([], [2], 0.0)]
    file = TextFile(tmp_path / "t", resume=False)
    for text in texts:
        file.append(text)
    assert list(file.texts()) == texts
    file.publish()
    assert list(read_texts(tmp_path / "t")) == texts
