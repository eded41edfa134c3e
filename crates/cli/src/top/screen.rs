//! The interactive screen of `bellerophon top`.
//!
//! In: numbers, and keys and sizes of the terminal. Out: a frame.
//! Guarantees: the rows that fit are drawn and the selected one is among them; columns that do not
//! fit are left out, the most important ones fit into 80; a state is a colour and a word or number.

use std::cmp::Ordering;

use crossterm::event::{Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize as _};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Row, Table, TableState};

use super::numbers::{ControllerRow, Numbers, duration, number};

/// Controllers with quantiles of both kinds need this width.
const WIDE: u16 = 112;

/// What follows from an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Wait,
    Draw,
    Leave,
}

/// The table that is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum View {
    #[default]
    Queues,
    Caches,
}

/// The order of controllers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Order {
    #[default]
    Rate,
    Ready,
    Wait,
    Errors,
    Name,
}

impl Order {
    fn next(self) -> Self {
        match self {
            Self::Rate => Self::Ready,
            Self::Ready => Self::Wait,
            Self::Wait => Self::Errors,
            Self::Errors => Self::Name,
            Self::Name => Self::Rate,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Rate => "rate",
            Self::Ready => "ready keys",
            Self::Wait => "wait",
            Self::Errors => "errors",
            Self::Name => "name",
        }
    }

    fn compare(self, a: &ControllerRow, b: &ControllerRow) -> Ordering {
        let order = match self {
            Self::Rate => b.rate.total_cmp(&a.rate),
            Self::Ready => b.ready.cmp(&a.ready),
            Self::Wait => b.wait[1].cmp(&a.wait[1]),
            Self::Errors => b.errors.cmp(&a.errors),
            Self::Name => Ordering::Equal,
        };
        order.then_with(|| a.name.cmp(&b.name))
    }
}

/// What the user selected.
#[derive(Debug, Default)]
pub(super) struct Screen {
    view: View,
    order: Order,
    /// The rows stay as they are.
    is_paused: bool,
    /// The rows of a paused screen.
    paused: Option<Vec<ControllerRow>>,
    state: TableState,
}

impl Screen {
    /// Handles a key or a new size.
    pub(super) fn handle(&mut self, event: &Event) -> Step {
        let key = match event {
            Event::Key(key) if key.kind != KeyEventKind::Release => key,
            Event::Resize(..) => return Step::Draw,
            _ => return Step::Wait,
        };
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return Step::Leave,
            KeyCode::Char('q') | KeyCode::Esc => return Step::Leave,
            KeyCode::Tab | KeyCode::BackTab => {
                self.view = match self.view {
                    View::Queues => View::Caches,
                    View::Caches => View::Queues,
                };
                self.state = TableState::default();
            }
            KeyCode::Char('s') => self.order = self.order.next(),
            KeyCode::Char('p' | ' ') => {
                self.is_paused = !self.is_paused;
                self.paused = None;
            }
            KeyCode::Down | KeyCode::Char('j') => self.state.select_next(),
            KeyCode::Up | KeyCode::Char('k') => self.state.select_previous(),
            KeyCode::Home => self.state.select_first(),
            KeyCode::End => self.state.select_last(),
            _ => return Step::Wait,
        }
        Step::Draw
    }

    /// Draws everything.
    pub(super) fn draw(&mut self, numbers: &Numbers, frame: &mut Frame<'_>) {
        let parts = Layout::vertical([
            Constraint::Length(2),
            Constraint::Min(3),
            Constraint::Length(1),
        ]);
        let [head, body, foot] = parts.areas(frame.area());
        let mut controllers = match self.paused.take() {
            Some(rows) => rows,
            None => numbers.controllers(),
        };
        if self.is_paused {
            self.paused = Some(controllers.clone());
        }
        frame.render_widget(self.head(numbers, &controllers), head);
        match self.view {
            View::Queues => {
                controllers.sort_by(|a, b| self.order.compare(a, b));
                self.draw_queues(&controllers, frame, body);
            }
            View::Caches => self.draw_caches(numbers, frame, body),
        }
        frame.render_widget(self.foot(), foot);
    }

    fn head(&self, numbers: &Numbers, controllers: &[ControllerRow]) -> Line<'static> {
        let rate: f64 = controllers.iter().map(|row| row.rate).sum();
        let ready: u64 = controllers.iter().filter_map(|row| row.ready).sum();
        let errors: u64 = controllers.iter().map(|row| row.errors).sum();
        let mut spans = vec!["bellerophon top  ".bold()];
        if self.is_paused {
            spans.push("PAUSED  ".yellow().bold());
        }
        let keys = count(ready, "ready key");
        spans.extend([
            format!("{rate:.1} reconciles/s, {keys}, ").into(),
            problem(errors, count(errors, "error")),
        ]);
        // The least important are cut off first.
        if numbers.missed > 0 {
            spans.push(format!(", {} missed", numbers.missed).yellow());
        }
        spans.push(format!(", {}", count(numbers.records, "record")).dim());
        spans.into()
    }

    fn foot(&self) -> Line<'static> {
        let order = format!("s order: {}", self.order.name());
        let keys = [
            "q quit",
            "Tab queues, caches",
            "↑↓ select",
            &order,
            "p pause",
        ];
        let spans = keys.iter().flat_map(|text| {
            let (key, name) = text.split_once(' ').unwrap_or((text, ""));
            [key.to_owned().bold(), format!(" {name}   ").dim()]
        });
        spans.collect::<Vec<Span<'_>>>().into()
    }

    fn draw_queues(&mut self, rows: &[ControllerRow], frame: &mut Frame<'_>, area: Rect) {
        let is_wide = area.width >= WIDE;
        let mut names = vec!["CONTROLLER", "RATE/S", "READY", "FLIGHT", "DELAYED"];
        let mut widths = vec![Constraint::Min(20)];
        widths.extend([7, 6, 6, 7].map(Constraint::Length));
        names.extend(match is_wide {
            true => vec!["WAIT P50", "P99", "WORK P50", "P99", "ERRORS"],
            false => vec!["WAIT", "WORK", "ERR"],
        });
        widths.extend(match is_wide {
            true => [9, 9, 9, 9, 7].map(Constraint::Length).to_vec(),
            false => [9, 9, 4].map(Constraint::Length).to_vec(),
        });
        let shown = rows.iter().map(|row| {
            let mut cells = vec![
                Cell::from(row.name.clone()),
                right(Span::raw(format!("{:.1}", row.rate))),
                right(quiet(row.ready)),
                right(quiet(row.in_flight)),
                right(quiet(row.delayed)),
            ];
            let quantiles = [row.wait, row.work].concat();
            let columns: &[usize] = if is_wide { &[0, 1, 2, 3] } else { &[1, 3] };
            cells.extend(
                columns
                    .iter()
                    .map(|i| right(duration(quantiles[*i]).into())),
            );
            cells.push(right(problem(row.errors, row.errors.to_string())));
            Row::new(cells)
        });
        let table = table(&names, widths, shown.collect());
        frame.render_stateful_widget(table, area, &mut self.state);
    }

    fn draw_caches(&mut self, numbers: &Numbers, frame: &mut Frame<'_>, area: Rect) {
        let names = [
            "CACHE", "OBJECTS", "REVISION", "BACKLOG", "LAG", "RELISTS", "WATCHES",
        ];
        let mut widths = vec![Constraint::Min(20)];
        widths.extend([8, 9, 8, 9, 8, 8].map(Constraint::Length));
        let shown = numbers.caches().into_iter().map(|row| {
            let lag = duration(Some(row.lag_us));
            Row::new([
                Cell::from(row.kind),
                right(Span::raw(row.objects.to_string())),
                right(Span::raw(number(row.version))),
                right(problem(row.backlog, row.backlog.to_string())),
                right(problem(row.backlog, lag)),
                right(quiet(Some(row.relists))),
                right(quiet(Some(row.watches))),
            ])
        });
        let table = table(&names, widths, shown.collect());
        frame.render_stateful_widget(table, area, &mut self.state);
    }
}

fn table<'a>(names: &[&'a str], widths: Vec<Constraint>, rows: Vec<Row<'a>>) -> Table<'a> {
    let heads = names.iter().enumerate().map(|(i, name)| match i {
        0 => Cell::from(*name),
        _ => right(Span::raw(*name)),
    });
    let head = Row::new(heads).style(Style::new().add_modifier(Modifier::DIM));
    Table::new(rows, widths)
        .header(head)
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
}

fn right(span: Span<'_>) -> Cell<'_> {
    Cell::from(Text::from(span).alignment(Alignment::Right))
}

/// A number that is dim if it is zero or unknown.
fn quiet(value: Option<u64>) -> Span<'static> {
    match value {
        None | Some(0) => number(value).dim(),
        Some(_) => number(value).fg(Color::Cyan),
    }
}

/// `1 error`, `2 errors`.
fn count(number: u64, name: &str) -> String {
    let end = if number == 1 { "" } else { "s" };
    format!("{number} {name}{end}")
}

/// A text that is red if there is a problem.
fn problem(count: u64, text: String) -> Span<'static> {
    match count {
        0 => text.dim(),
        _ => text.red(),
    }
}

#[cfg(test)]
mod tests {
    use crossterm::event::KeyEvent;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::top::numbers::tests::numbers;

    fn lines(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a terminal");
        terminal
            .draw(|frame| screen.draw(&numbers(), frame))
            .expect("a frame");
        let buffer = terminal.backend().buffer();
        let width = usize::from(width);
        let symbols: Vec<&str> = buffer.content().iter().map(|cell| cell.symbol()).collect();
        let rows = symbols.chunks(width);
        rows.map(|row| row.concat().trim_end().to_owned()).collect()
    }

    fn press(screen: &mut Screen, code: KeyCode) -> Step {
        screen.handle(&Event::Key(KeyEvent::from(code)))
    }

    #[test]
    fn columns_fit_into_80_and_widen_with_the_terminal() {
        let mut screen = Screen::default();
        let narrow = lines(&mut screen, 80, 24);
        assert_eq!(narrow.len(), 24);
        assert_eq!(
            narrow[2].split_whitespace().collect::<Vec<_>>().join(" "),
            "CONTROLLER RATE/S READY FLIGHT DELAYED WAIT WORK ERR"
        );
        let hero = narrow.iter().find(|line| line.starts_with("hero"));
        let hero: Vec<_> = hero.expect("a row").split_whitespace().collect();
        assert_eq!(hero.join(" "), "hero 0.1 3 1 2 1.5 ms 1.017 s 1");
        assert!(narrow[23].starts_with("q quit"), "{}", narrow[23]);
        assert!(narrow[0].contains("0.2 reconciles/s, 3 ready keys, 1 error, 4 missed"));
        let wide = lines(&mut screen, 120, 24);
        assert!(wide[2].contains("WAIT P50"), "{}", wide[2]);
        // Too small for a table, and still no panic.
        assert_eq!(lines(&mut screen, 10, 3).len(), 3);
    }

    #[test]
    fn keys_change_view_order_and_selection() {
        let mut screen = Screen::default();
        assert!(lines(&mut screen, 80, 24)[3].starts_with("garbage-collector"));
        assert_eq!(press(&mut screen, KeyCode::Char('s')), Step::Draw);
        assert!(
            lines(&mut screen, 80, 24)[3].starts_with("hero"),
            "by ready keys"
        );
        assert_eq!(press(&mut screen, KeyCode::Down), Step::Draw);
        assert_eq!(screen.state.selected(), Some(0));
        assert_eq!(press(&mut screen, KeyCode::Tab), Step::Draw);
        let caches = lines(&mut screen, 80, 24);
        assert!(caches[2].starts_with("CACHE"), "{}", caches[2]);
        assert!(caches[3].starts_with("Pod"), "{}", caches[3]);
        press(&mut screen, KeyCode::Char('p'));
        assert!(lines(&mut screen, 80, 24)[0].starts_with("bellerophon top  PAUSED"));
        assert_eq!(press(&mut screen, KeyCode::Char('x')), Step::Wait);
        assert_eq!(screen.handle(&Event::Resize(100, 30)), Step::Draw);
        assert_eq!(press(&mut screen, KeyCode::Char('q')), Step::Leave);
    }
}
