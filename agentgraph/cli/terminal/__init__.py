"""Terminal input and output: lines of text, the screen of a conversation, transcripts.

`conversation` runs the conversation of `chat`: it reads lines from `keyboard`, writes to a
`screen`, and parses answers to questions with `decisions`. `transcript` shows a session from its
`envelopes`. All text of models, tools and people passes `text.clean` before it is printed.
"""
