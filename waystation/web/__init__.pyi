from waystation.web.access import FindPerson, HostPerson
from waystation.web.limits import Limits
from waystation.web.server import create_app
from waystation.web.web_settings import WebSettings

__all__ = ["FindPerson", "HostPerson", "Limits", "WebSettings", "create_app"]
