"""Adapters of engines that embed texts. Each has `Engine(folder, **options)`, with `version` and `embed`."""
