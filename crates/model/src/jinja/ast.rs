//! The syntax tree of a template.

use std::sync::Arc;

use super::limits::{Fault, TREE};

/// A statement, or text between tags.
#[derive(Debug)]
pub enum Statement {
    /// Text that is printed as it is.
    Data(Arc<str>),
    /// `{{ ... }}`, with its line.
    Print(usize, Expression),
    /// `{% if %}` and its `elif`s, each with line, condition and body; then the body of `{% else %}`.
    If(Vec<(usize, Expression, Vec<Statement>)>, Vec<Statement>),
    /// `{% for %}`.
    For(Arc<For>),
    /// `{% set a = ... %}`.
    Set(usize, Target, Expression),
    /// `{% set a %}...{% endset %}`.
    SetBlock(usize, Target, Vec<FilterCall>, Vec<Statement>),
    /// `{% with %}`.
    With(usize, Vec<(Target, Expression)>, Vec<Statement>),
    /// `{% macro %}`.
    Macro(Arc<Macro>),
    /// `{% call %}`: the call, and the macro that it passes as `caller`.
    Call(usize, CallExpression, Arc<Macro>),
    /// `{% filter %}`.
    Filter(usize, Vec<FilterCall>, Vec<Statement>),
    /// `{% generation %}`: prints its body, in a scope of its own.
    Generation(Vec<Statement>),
    /// `{% block %}`, whose body sees only the top-level variables of the template.
    Block(Vec<Statement>),
    /// `{% break %}`.
    Break,
    /// `{% continue %}`.
    Continue,
}

/// A loop.
#[derive(Debug)]
pub struct For {
    /// Its line.
    pub line: usize,
    /// The variables that each item is assigned to.
    pub target: Target,
    /// What is iterated over.
    pub over: Expression,
    /// The condition that items must meet.
    pub filter: Option<Expression>,
    /// Whether `loop` can be called.
    pub recursive: bool,
    /// What is run for each item.
    pub body: Vec<Statement>,
    /// What is run if no turn ended normally (`{% else %}`).
    pub otherwise: Vec<Statement>,
}

/// A macro, or the body of a call block.
#[derive(Debug)]
pub struct Macro {
    /// Its name.
    pub name: Arc<str>,
    /// Parameters with their default values.
    pub parameters: Vec<(Arc<str>, Option<Expression>)>,
    /// The statements that it runs.
    pub body: Vec<Statement>,
    /// Which of the names `varargs`, `kwargs` and `caller` occur in its body. Without them, surplus arguments are an error.
    pub special: Special,
}

/// Special names in the body of a macro.
#[derive(Debug, Default, Clone, Copy)]
pub struct Special {
    /// `varargs`.
    pub varargs: bool,
    /// `kwargs`.
    pub kwargs: bool,
    /// `caller`.
    pub caller: bool,
}

/// What a value is assigned to.
#[derive(Debug)]
pub enum Target {
    /// A variable.
    Name(Arc<str>),
    /// An attribute of a namespace.
    Attribute(Arc<str>, Arc<str>),
    /// Several targets, each for one item of the value.
    Tuple(Vec<Target>),
}

/// `|name(arguments)`, or `is name(arguments)`.
#[derive(Debug)]
pub struct FilterCall {
    /// The name of the filter or test.
    pub name: Arc<str>,
    /// Its arguments.
    pub arguments: Arguments,
}

/// A call of a function.
#[derive(Debug)]
pub struct CallExpression {
    /// What is called.
    pub function: Expression,
    /// Its arguments.
    pub arguments: Arguments,
}

/// Arguments of a call.
#[derive(Debug, Default)]
pub struct Arguments {
    /// By position.
    pub positional: Vec<Expression>,
    /// By name.
    pub named: Vec<(Arc<str>, Expression)>,
    /// `*expression`.
    pub more: Option<Expression>,
    /// `**expression`.
    pub more_named: Option<Expression>,
}

/// An expression and the depth of its tree.
#[derive(Debug)]
pub struct Expression {
    /// What it is.
    pub kind: Box<Kind>,
    depth: usize,
}

/// A literal in a template.
#[derive(Debug, Clone)]
pub enum Constant {
    /// `none`.
    None,
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Int(i128),
    /// A float.
    Float(f64),
    /// A string.
    Text(Arc<str>),
}

/// The kinds of expressions.
#[derive(Debug)]
pub enum Kind {
    /// A literal.
    Constant(Constant),
    /// A variable.
    Name(Arc<str>),
    /// `[...]`.
    List(Vec<Expression>),
    /// `(..., ...)`.
    Tuple(Vec<Expression>),
    /// `{...}`.
    Dict(Vec<(Expression, Expression)>),
    /// `not`.
    Not(Expression),
    /// Unary `-`.
    Negative(Expression),
    /// Unary `+`.
    Positive(Expression),
    /// A binary operator and its operands.
    Arithmetic(Operator, Expression, Expression),
    /// `a ~ b ~ c`.
    Concat(Vec<Expression>),
    /// `a < b < c`.
    Compare(Expression, Vec<(Comparison, Expression)>),
    /// `and`.
    And(Expression, Expression),
    /// `or`.
    Or(Expression, Expression),
    /// `then if test else otherwise`, in the order test, then, otherwise.
    Condition(Expression, Expression, Option<Expression>),
    /// `a.b`.
    Attribute(Expression, Arc<str>),
    /// `a[b]`.
    Item(Expression, Expression),
    /// `a[from:to:step]`.
    Slice(Expression, [Option<Expression>; 3]),
    /// `a(b)`, with its line.
    Call(usize, CallExpression),
    /// `a|b`.
    Filter(Expression, FilterCall),
    /// `a is b`.
    Test(Expression, FilterCall),
}

/// A binary operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// `+`.
    Add,
    /// `-`.
    Subtract,
    /// `*`.
    Multiply,
    /// `/`.
    Divide,
    /// `//`.
    FloorDivide,
    /// `%`.
    Remainder,
    /// `**`.
    Power,
}

/// A comparison operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `==`.
    Equal,
    /// `!=`.
    Unequal,
    /// `<`.
    Less,
    /// `<=`.
    LessOrEqual,
    /// `>`.
    Greater,
    /// `>=`.
    GreaterOrEqual,
    /// `in`.
    In,
    /// `not in`.
    NotIn,
}

impl Expression {
    /// Makes an expression of this kind.
    ///
    /// # Errors
    /// If its tree is deeper than [`TREE`].
    pub fn new(kind: Kind) -> Result<Self, Fault> {
        let mut depth = 0;
        kind.children(&mut |child| depth = depth.max(child.depth));
        match depth < TREE {
            true => Ok(Self { kind: Box::new(kind), depth: depth + 1 }),
            false => Err(Fault::new(format!(
                "an expression has more than {TREE} parts in sequence, or is nested more than {TREE} deep"
            ))),
        }
    }
}

impl Arguments {
    fn children<'a>(&'a self, see: &mut dyn FnMut(&'a Expression)) {
        self.positional.iter().for_each(&mut *see);
        self.named.iter().map(|(_, value)| value).for_each(&mut *see);
        self.more.iter().chain(&self.more_named).for_each(see);
    }
}

impl Kind {
    fn children<'a>(&'a self, see: &mut dyn FnMut(&'a Expression)) {
        match self {
            Kind::Constant(_) | Kind::Name(_) => {}
            Kind::List(all) | Kind::Tuple(all) | Kind::Concat(all) => all.iter().for_each(see),
            Kind::Dict(pairs) => pairs.iter().flat_map(|(key, value)| [key, value]).for_each(see),
            Kind::Not(a) | Kind::Negative(a) | Kind::Positive(a) | Kind::Attribute(a, _) => see(a),
            Kind::Arithmetic(_, a, b) | Kind::And(a, b) | Kind::Or(a, b) | Kind::Item(a, b) => {
                see(a);
                see(b);
            }
            Kind::Compare(first, rest) => {
                see(first);
                rest.iter().map(|(_, other)| other).for_each(see);
            }
            Kind::Condition(test, then, otherwise) => {
                see(test);
                see(then);
                otherwise.iter().for_each(see);
            }
            Kind::Slice(of, bounds) => {
                see(of);
                bounds.iter().flatten().for_each(see);
            }
            Kind::Call(_, call) => {
                see(&call.function);
                call.arguments.children(see);
            }
            Kind::Filter(of, call) | Kind::Test(of, call) => {
                see(of);
                call.arguments.children(see);
            }
        }
    }
}
