"""The trusted process between the judge and a jail.

Started as a program of its own by the base interpreter with `-I -S`, so it uses the standard library only and
imports nothing else of this project. The judge's side shares its helpers (cgroups, process walks, frames).
"""
