"""Rows, anchors and labels against what a loop over the texts finds."""

from itertools import pairwise

import numpy as np
import pytest
from tiny_training import made_up_texts, make_batches

from dspark.engine.errors import UsageError
from dspark.engine.training.documents import Documents, check_enough, pack_rows
from dspark.engine.training.settings import PAGE_TOKENS, TrainSettings
from dspark.engine.training.text_file import Text

SETTINGS = TrainSettings(steps=1, rows=4, row_tokens=64, anchors=9)
GAMMA = 7


@pytest.fixture
def documents():
    return Documents.from_texts(made_up_texts(40), most_tokens=64)


def texts_of(host, width):
    """(row, first column, tokens) of every text of a batch, fillings included."""
    for first, last in pairwise(host.query_starts.tolist()):
        yield first // width, first % width, host.token_ids[first:last]


def test_rows_hold_whole_texts_each_once_an_epoch(documents):
    batches = make_batches(documents, SETTINGS)
    wanted = sorted(tuple(documents.document(index).tolist()) for index in range(len(documents)))
    # As many batches as rows are exactly `rows` epochs.
    found = [
        tuple(tokens.tolist())
        for number in range(num_rows(batches))
        for _, _, tokens in texts_of(batches.batch(number), 64)
        if tokens.any()
    ]
    assert sorted(found) == sorted(wanted * SETTINGS.rows)


def test_each_batch_depends_on_seed_and_number_alone(documents):
    one, other = make_batches(documents, SETTINGS), make_batches(documents, SETTINGS)
    order = [3, 0, 17, 3]
    for number in order:
        first, again = one.batch(number), other.batch(number)
        for name in first.__dataclass_fields__:
            assert np.array_equal(getattr(first, name), getattr(again, name)), name
        other.batch(number + 100)
    assert not np.array_equal(one.batch(0).anchor_columns, one.batch(num_rows(one)).anchor_columns)


def num_rows(batches):
    """Rows of an epoch."""
    return sum(len(host.token_ids) // SETTINGS.row_tokens for host in batches.once())


def test_slots_have_the_texts_own_continuation_as_labels(documents):
    batches = make_batches(documents, SETTINGS)
    prompts = {
        tuple(documents.document(index).tolist()): documents.prompt_lengths[index] for index in range(len(documents))
    }
    decay = np.exp(-np.arange(GAMMA) / SETTINGS.position_decay)
    for number in range(6):
        host = batches.batch(number)
        expected = {}
        for row, column, tokens in texts_of(host, 64):
            prompt = prompts.get(tuple(tokens.tolist()))
            if prompt is None:
                continue
            for place, anchor in enumerate(host.anchor_columns[row] - column):
                is_block = host.first_columns[row, place] < host.anchor_columns[row, place]
                if not (is_block and 0 <= anchor < len(tokens)):
                    continue
                # The first token that the target wrote is known when drafting begins.
                assert prompt <= anchor < len(tokens) - 1
                assert host.first_columns[row, place] == column
                for slot in range(min(GAMMA, len(tokens) - 1 - anchor)):
                    index = (row * SETTINGS.anchors + place) * GAMMA + slot
                    facing = row * 64 + column + anchor + slot
                    expected[index] = (tokens[anchor + 1 + slot], facing, slot)
        assert host.slots.tolist() == sorted(expected)
        labels, facing, slots = (np.array(column) for column in zip(*map(expected.get, host.slots), strict=True))
        assert np.array_equal(host.labels, labels)
        assert np.array_equal(host.target_positions[host.target_rows], facing)
        assert np.allclose(host.weights, decay[slots] / decay[slots].sum(), atol=1e-7)
        assert np.array_equal(np.unique(facing), host.target_positions)


def test_anchors_are_all_there_are_if_there_are_few():
    documents = Documents.from_texts([Text([3, 4], [5, 6, 7, 8])], most_tokens=64)
    host = make_batches(documents, SETTINGS).batch(0)
    is_block = host.first_columns < host.anchor_columns
    assert all(
        columns[blocks].tolist() == [2, 3, 4] for columns, blocks in zip(host.anchor_columns, is_block, strict=True)
    )
    assert len(host.slots) == SETTINGS.rows * (3 + 2 + 1)


def test_cache_rows_of_texts_do_not_meet(documents):
    batches = make_batches(documents, SETTINGS)
    host = batches.batch(0)
    assert len(set(host.cache_rows.tolist())) == len(host.cache_rows)
    assert host.cache_rows.min() >= PAGE_TOKENS
    assert host.cache_rows.max() < batches.num_pages * PAGE_TOKENS
    for request, (first, last) in enumerate(pairwise(host.query_starts.tolist())):
        positions = host.text_positions[first:last]
        assert positions.tolist() == list(range(last - first))
        pages = host.block_tables[request, positions // PAGE_TOKENS]
        assert np.array_equal(pages * PAGE_TOKENS + positions % PAGE_TOKENS, host.cache_rows[first:last])


def test_chunks_cover_all_positions_and_share_no_target_position(documents, monkeypatch):
    monkeypatch.setattr("dspark.engine.training.batches.CHUNK_POSITIONS", 2 * 9 * GAMMA)
    host = make_batches(documents, SETTINGS).batch(0)
    assert len(host.chunks) == 2
    assert [chunk.positions.start for chunk in host.chunks] == [0, host.chunks[0].positions.stop]
    assert host.chunks[-1].positions.stop == len(host.slots)
    for chunk in host.chunks:
        rows = host.target_rows[chunk.positions]
        assert rows.min() >= chunk.target_rows.start
        assert rows.max() < chunk.target_rows.stop


def test_packing_fills_rows_and_loses_nothing():
    draw = np.random.default_rng(1)
    lengths = draw.integers(1, 500, 2000)
    rows = pack_rows(lengths.tolist(), capacity=512, order=draw.permutation(2000))
    assert sorted(index for row in rows for index in row) == list(range(2000))
    filled = [lengths[row].sum() for row in rows]
    assert max(filled) <= 512
    assert sum(filled) / (512 * len(rows)) > 0.97


def test_texts_are_cut_and_those_without_a_block_left_out():
    texts = [Text([3] * 5, [4] * 10), Text([3] * 8, [4] * 10), Text([3] * 9, [4] * 10), Text([3], [4])]
    documents = Documents.from_texts(texts, most_tokens=10)
    assert documents.lengths.tolist() == [10, 10]
    assert documents.prompt_lengths.tolist() == [5, 8]


def test_no_prompt_is_on_both_sides():
    texts = [Text([3, index % 30], [5, 6, index], 1.0) for index in range(600)]
    documents = Documents.from_texts(texts, most_tokens=64)
    held_out = documents.held_out()
    sides = [{documents.document(i)[1] for i in np.flatnonzero(side)} for side in (held_out, ~held_out)]
    assert not sides[0] & sides[1]
    assert 16 <= held_out.sum() <= 60


def sizes_of(*groups):
    """Texts of so many a prompt, all of them different."""
    return [Text([3, prompt], [5, 6, index], 1.0) for prompt, size in enumerate(groups) for index in range(size)]


@pytest.mark.parametrize(
    "groups", [(1, 1), (99, 1), (1, 99), (2, 1, 1), (50, 50), (1, 400, 1), (30,) * 3, (1,) * 7], ids=str
)
def test_both_sides_have_texts_however_uneven_the_prompts_are(groups):
    documents = Documents.from_texts(sizes_of(*groups), most_tokens=64)
    held_out = documents.held_out()
    check_enough(documents, held_out)
    assert 1 <= held_out.sum() <= len(documents) / 2
    prompts = [{documents.document(i)[1] for i in np.flatnonzero(side)} for side in (held_out, ~held_out)]
    assert prompts[0] and prompts[1] and not prompts[0] & prompts[1]


def test_texts_behind_one_prompt_are_held_out_one_by_one():
    texts = sizes_of(100) + sizes_of(100)[:50]
    documents = Documents.from_texts(texts, most_tokens=64)
    assert documents.share_prompt
    held_out = documents.held_out()
    check_enough(documents, held_out)
    sides = [{documents.document(i).tobytes() for i in np.flatnonzero(side)} for side in (held_out, ~held_out)]
    assert sides[0] and sides[1] and not sides[0] & sides[1]
    assert held_out.sum() <= 40


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "0 texts of a usable length are too few"),
        ([Text([3], [4, 5, 6])], "1 texts of a usable length are too few"),
        ([Text([3], [4, 5, 6])] * 5, "all 5 texts are the same one, so none can be held out"),
        (
            [Text([3, i], [4, 5, 6], 0.6) for i in range(9)],
            "none of the held-out texts was written at temperature 1 or 0",
        ),
    ],
    ids=["none", "one", "one again and again", "lukewarm"],
)
def test_texts_that_cannot_be_measured_are_refused(texts, message):
    documents = Documents.from_texts(texts, most_tokens=64)
    with pytest.raises(UsageError, match=message):
        check_enough(documents, documents.held_out())
