"""Built-in environments; `astune.env_service.built_in` lists them, and nothing else imports them."""
