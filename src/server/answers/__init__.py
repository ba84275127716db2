"""What models answer, in the terms of no API: routes write it in their dialect.

reading.py: a sequence's deltas to events with their tokens. parts.py: events to a whole answer. responses.py and
messages.py write them in the form of the APIs of these names.
"""
