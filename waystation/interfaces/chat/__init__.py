"""What all chats share: linked accounts, the pages that link them, messages about pending calls, and answers.

A chat such as `waystation.interfaces.slack` adds a `Messenger`, and turns what people click into forms.
"""
