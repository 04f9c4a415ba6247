"""How tasks are given to CTranslate2."""

from jaxformer.decoding.ctranslate2_search import CTranslate2Search
from jaxformer.decoding.engine import Task


def test_tasks_with_a_prefix_share_no_batch_with_others(monkeypatch):
    """CTranslate2 would search these in another way."""
    searched = []
    monkeypatch.setattr(CTranslate2Search, "__init__", lambda self: None)
    monkeypatch.setattr(CTranslate2Search, "_begin", lambda self, tasks: tasks)
    monkeypatch.setattr(
        CTranslate2Search, "_finish", lambda self, tasks, _: searched.append(tasks)
    )
    monkeypatch.setattr(
        CTranslate2Search,
        "_batches",
        lambda self, tasks: iter([tasks] if tasks else []),
    )
    search = CTranslate2Search()
    search._searches = 1
    tasks = [Task([n, 3], 9, 0, [7] if n % 2 else []) for n in range(4, 9)]
    search.run(tasks, lambda: None)
    assert searched == [tasks[::2], tasks[1::2]]
    searched.clear()
    search.run(tasks[::2], lambda: None)
    assert searched == [tasks[::2]]
