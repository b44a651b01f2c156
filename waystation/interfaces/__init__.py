"""Interfaces for other protocols, which `waystation web --interface NAME` serves, and for chats.

Each is one module or package on the functions of `waystation.web.web_services`, which have all rules about people.
"""
