"""Prediction sets, intervals and referral rules with a guarantee. They are on their way."""
