"""What a person reads and types: lines of text, the screen of a conversation, transcripts.

`conversation` holds the conversation of `chat`, with lines from `keyboard`, on a `screen`, and
`decisions` reads what is typed at a question. `transcript` shows a session from its `envelopes`.
All text of models, tools and people passes `text.clean` before it is printed.
"""
