"""Bazel targets for pytest test files."""

_RUNNER = "//tools/bazel:pytest_runner.py"

def pytest_test(name, srcs, deps = [], size = "medium", args = [], data = [], **kwargs):
    """A py_test that runs pytest, with the project's settings, on its sources.

    conftest.py, other modules and testdata/ in the same folder are included.

    Args:
      name: Name of the target.
      srcs: Test files. pytest only runs these.
      deps: Libraries that the tests import.
      size: See py_test. Not "small": importing TFF alone takes seconds.
      args: More arguments for pytest.
      data: More files that the tests read.
      **kwargs: Passed to py_test.
    """
    helpers = native.glob(["*.py"], exclude = ["*_test.py"], allow_empty = True)
    testdata = native.glob(["testdata/**"], allow_empty = True)
    native.py_test(
        name = name,
        size = size,
        srcs = srcs + helpers + [_RUNNER],
        args = ["$(rootpath %s)" % src for src in srcs] + args,
        data = data + testdata + ["//:pytest_settings"],
        main = _RUNNER,
        deps = deps + ["//tests"],
        **kwargs
    )
