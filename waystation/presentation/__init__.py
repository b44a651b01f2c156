"""Safe text, words, timelines and templates, which terminals, web pages and reports share.

The command line, the web application and recordings import this package. It imports none of them.
"""
