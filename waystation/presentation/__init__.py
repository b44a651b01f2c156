"""How recordings, calls and answers are presented: in terminals, on web pages, in reports.

Shared by the command line and the web application; it imports neither.
"""
