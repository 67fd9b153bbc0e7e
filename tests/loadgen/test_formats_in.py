import pytest

from loadgen.formats_in import Recorded, read_recorded, replayed
from loadgen.record import BenchError

MOONCAKE = b"""{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46]}
{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 47, 48, 1]}
{"timestamp": 30535, "input_length": 110, "output_length": 500, "hash_ids": [9]}
"""
BURSTGPT = b"""Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,0,417,API log
122,GPT-4,1360,41,1401,API log
"""
AZURE = b"""TIMESTAMP,ContextTokens,GeneratedTokens\r
2023-11-16 18:15:46.6805900,374,44\r
2023-11-16 18:15:50.9951690,396,109\r
2023-11-16 18:16:51.2224670,4096,55\r
"""
AZURE_2024 = b"""TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:00.017335+00:00,2399,6
"""
BOUNDS = {"short": 512, "long": 8192}


def test_mooncake_times_are_milliseconds_and_begin_at_zero():
    assert read_recorded(MOONCAKE, "mooncake", "m.jsonl") == (
        Recorded(0.0, 6955, 52),
        Recorded(pytest.approx(3.053), 110, 500),
        Recorded(pytest.approx(3.053), 6472, 26),
    )


def test_burstgpt_rows_that_failed_there_are_left_out():
    rows = read_recorded(BURSTGPT, "burstgpt", "b.csv")
    assert [(r.at_s, r.input_tokens, r.output_tokens) for r in rows] == [
        (0.0, 472, 18),
        (40.0, 1087, 230),
        (117.0, 1360, 41),
    ]


@pytest.mark.parametrize(("data", "gap_s"), [(AZURE, 4.314579), (AZURE_2024, 0.007405)])
def test_azure_dates_are_read_to_their_last_digit(data, gap_s):
    rows = read_recorded(data, "azure", "a.csv")
    assert rows[1].at_s == pytest.approx(gap_s, abs=2e-6)


def test_a_minute_later_is_sixty_seconds_later():
    rows = read_recorded(AZURE, "azure", "a.csv")
    assert rows[2].at_s - rows[1].at_s == pytest.approx(60.227298, abs=2e-6)


@pytest.mark.parametrize(
    ("data", "form", "reason"),
    [
        (b'{"timestamp": 1}\n', "mooncake", r"f line 1: not a Mooncake request \(KeyError"),
        (b"not json\n", "mooncake", "f line 1: not valid JSON"),
        (b"Timestamp,Model\n1,x\n", "burstgpt", "column 'Request tokens' is missing"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "azure", "f line 2"),
        (b"", "mooncake", "holds no mooncake request"),
        (b"\xff\xfe", "azure", "not UTF-8"),
    ],
)
def test_what_is_not_the_format_is_refused_by_file_and_line(data, form, reason):
    with pytest.raises(BenchError, match=reason):
        read_recorded(data, form, "f")


ROWS = tuple(Recorded(float(n), 100 * (n + 1), 10) for n in range(11))


def test_times_are_stretched_to_the_mean_rate_and_cut_to_length():
    taken = replayed(ROWS, BOUNDS, 64, rate_per_s=2.0, length_s=3.0)
    assert [r.offset_us for r in taken] == [0, 500_000, 1_000_000, 1_500_000, 2_000_000, 2_500_000]


def test_each_request_gets_its_class_by_size():
    taken = replayed(ROWS, BOUNDS, 64, 1.0, 20.0)
    assert [r.size_class for r in taken] == ["short"] * 5 + ["long"] * 6


def test_sizes_that_cannot_be_served_or_made_are_moved_to_the_nearest_that_can():
    odd = (Recorded(0.0, 3, 0), Recorded(1.0, 20_000, 5))
    taken = replayed(odd, BOUNDS, 64, 1.0, 10.0)
    assert [(r.input_tokens, r.output_tokens) for r in taken] == [(64, 1), (8192, 5)]


def test_another_round_takes_the_next_stretch():
    one = replayed(ROWS, BOUNDS, 64, 1.0, 4.0)
    two = replayed(ROWS, BOUNDS, 64, 1.0, 4.0, skip_s=4.0)
    assert [r.input_tokens for r in one] == [100, 200, 300, 400]
    assert [(r.offset_us, r.input_tokens) for r in two][:2] == [(0, 500), (1_000_000, 600)]


def test_a_stretch_beyond_the_end_is_refused():
    with pytest.raises(BenchError, match="nothing from 50 to 60 s"):
        replayed(ROWS, BOUNDS, 64, 1.0, 10.0, skip_s=50.0)
