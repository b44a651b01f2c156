from waystation.auth.auth_credential import (
    AuthCredential,
    AuthCredentialTypes,
    HttpAuth,
    HttpCredentials,
    OAuth2Auth,
    ServiceAccount,
    ServiceAccountCredential,
)
from waystation.auth.auth_schemes import (
    APIKey,
    APIKeyIn,
    AuthScheme,
    AuthSchemeType,
    CustomAuthScheme,
    ExtendedOAuth2,
    HTTPBase,
    HTTPBearer,
    OAuth2,
    OAuthFlowAuthorizationCode,
    OAuthFlowClientCredentials,
    OAuthFlowImplicit,
    OAuthFlowPassword,
    OAuthFlows,
    OAuthGrantType,
    OpenIdConnect,
    OpenIdConnectWithConfig,
    SecurityScheme,
    SecuritySchemeType,
)
from waystation.auth.auth_tool import AuthConfig
from waystation.auth.credential_manager import CredentialManager
from waystation.auth.credential_service.base_credential_service import BaseCredentialService
from waystation.auth.credential_service.encrypted_file_credential_service import EncryptedFileCredentialService
from waystation.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from waystation.auth.credential_service.postgres_credential_service import PostgresCredentialService
from waystation.auth.credential_service.store_location import open_store
from waystation.auth.credential_store import (
    Authorized,
    Bucket,
    CredentialStore,
    Place,
    WaitingCall,
    complete_authorization,
    provide_credential,
)
from waystation.auth.credential_store import begin_login as begin_login
from waystation.auth.credential_store import find_bucket as find_bucket
from waystation.auth.credential_store import load_refreshed as load_refreshed

__all__ = [
    "APIKey",
    "APIKeyIn",
    "AuthConfig",
    "AuthCredential",
    "AuthCredentialTypes",
    "AuthScheme",
    "AuthSchemeType",
    "Authorized",
    "BaseCredentialService",
    "Bucket",
    "CredentialManager",
    "CredentialStore",
    "CustomAuthScheme",
    "EncryptedFileCredentialService",
    "ExtendedOAuth2",
    "HTTPBase",
    "HTTPBearer",
    "HttpAuth",
    "HttpCredentials",
    "InMemoryCredentialService",
    "OAuth2",
    "OAuth2Auth",
    "OAuthFlowAuthorizationCode",
    "OAuthFlowClientCredentials",
    "OAuthFlowImplicit",
    "OAuthFlowPassword",
    "OAuthFlows",
    "OAuthGrantType",
    "OpenIdConnect",
    "OpenIdConnectWithConfig",
    "Place",
    "PostgresCredentialService",
    "SecurityScheme",
    "SecuritySchemeType",
    "ServiceAccount",
    "ServiceAccountCredential",
    "WaitingCall",
    "complete_authorization",
    "open_store",
    "provide_credential",
]
