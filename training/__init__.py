"""The bundled trainer: Stage 2 of a vision-language-action policy, on batches of autoloader.

It knows the loader by ``autoloader.lightning`` and ``autoloader.spec``, as any trainer does.
"""
