"""The environments that are built in; `astune.env_service.built_in` names them, and nothing else imports them."""
