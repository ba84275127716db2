"""The estimate of the time that a compilation still takes."""

from stoker.engine.kernels.cpu.progress import Meter, Progress


def test_the_time_left_counts_what_is_done_of_files_in_progress():
    """It was twice the true time at the first report: two compilers had worked, and one file was done."""
    now, seen = 0.0, []
    meter = Meter([10.0, 10.0, 5.0, 5.0], 2, seen.append, lambda: now)
    assert seen == [Progress(0, 4, 15.0)]
    meter.begin("a", 10.0)
    meter.begin("b", 10.0)
    now = 20.0  # this machine takes twice as long
    meter.end("a")
    meter.begin("c", 5.0)
    assert seen[-1] == Progress(1, 4, 10.0)  # b ends now, and the two others take 10 s each on two compilers
    meter.end("b")
    meter.begin("d", 5.0)
    assert seen[-1] == Progress(2, 4, 10.0)
    now = 30.0
    meter.end("c")
    assert seen[-1] == Progress(3, 4, 0.0)
    meter.end("d")
    assert str(seen[1]) == "1 of 4 files, about 10 s left"
    assert str(seen[-1]) == "4 of 4 files"
