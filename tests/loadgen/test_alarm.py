import asyncio
import time

import pytest

from loadgen.alarm import SpinAlarm, TimerfdAlarm, new_alarm


@pytest.mark.parametrize("kind", [TimerfdAlarm, SpinAlarm, new_alarm])
async def test_an_alarm_never_fires_before_its_instant(kind):
    fired = asyncio.Event()
    alarm = kind(asyncio.get_running_loop(), fired.set)
    due_ns = time.monotonic_ns() + 20_000_000
    alarm.set(due_ns)
    await fired.wait()
    assert time.monotonic_ns() >= due_ns
    alarm.close()


@pytest.mark.parametrize("kind", [TimerfdAlarm, SpinAlarm])
async def test_an_instant_in_the_past_fires(kind):
    fired = asyncio.Event()
    alarm = kind(asyncio.get_running_loop(), fired.set)
    alarm.set(time.monotonic_ns() - 1)
    await fired.wait()
    alarm.close()


@pytest.mark.parametrize("kind", [TimerfdAlarm, SpinAlarm])
async def test_setting_again_replaces_the_instant(kind):
    times = []
    alarm = kind(asyncio.get_running_loop(), lambda: times.append(time.monotonic_ns()))
    later = time.monotonic_ns() + 30_000_000
    alarm.set(time.monotonic_ns() + 5_000_000)
    alarm.set(later)
    await asyncio.sleep(0.06)
    assert len(times) == 1
    assert times[0] >= later
    alarm.close()


@pytest.mark.parametrize("kind", [TimerfdAlarm, SpinAlarm])
async def test_a_closed_alarm_stays_silent(kind):
    times = []
    alarm = kind(asyncio.get_running_loop(), lambda: times.append(1))
    alarm.set(time.monotonic_ns() + 5_000_000)
    alarm.close()
    alarm.close()
    await asyncio.sleep(0.02)
    assert times == []
