// Rules for the player's source; tsc checks names and types.

export default [
  { ignores: ["types/**"] },
  {
    files: ["**/*.js"],
    linterOptions: { reportUnusedDisableDirectives: true },
    rules: {
      "eqeqeq": "error",
      "max-len": ["error", { code: 100 }],
      "no-constant-binary-expression": "error",
      "no-debugger": "error",
      "no-eval": "error",
      "no-implied-eval": "error",
      "no-new-func": "error",
      "no-shadow-restricted-names": "error",
      "no-unreachable": "error",
      "no-unsafe-finally": "error",
      "no-unused-vars": ["error", { argsIgnorePattern: "^_", varsIgnorePattern: "^_$" }],
      "no-useless-return": "error",
      "no-var": "error",
      "object-shorthand": "error",
      "prefer-const": "error",
      "prefer-template": "error",
      "semi": "error",
    },
  },
];
