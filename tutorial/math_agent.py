"""The math agent by a shorter name: `tutorial.math_agent->ExampleMathLearn`."""

from tutorial.example_math_agent.math_agent import ExampleMathLearn

__all__ = ["ExampleMathLearn"]
