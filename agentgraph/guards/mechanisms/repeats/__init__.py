"""What repeats: `wording` compares questions, `answer` results, `window` keeps the last calls."""
