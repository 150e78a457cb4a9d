/** What a metric's name means, from the catalogue that the server answers with. */

import type { Metric } from '../data/types'
import { language } from '../state/preferences'

export interface Described {
  title: string
  unit: string
  meaning: string
}

/** In the reader's language; a name that the catalogue does not have is its own title. */
export function described(name: string, catalogue: Metric[]): Described {
  const found = entryOf(name, catalogue)
  if (!found) return { title: name, unit: '', meaning: '' }
  const { metric, parts } = found
  const chinese = language.value === 'zh'
  const title = (chinese ? metric.title_zh : metric.title).replace(/<(\w+)>/g, (whole, part: string) => parts[part] ?? whole)
  return { title, unit: metric.unit, meaning: chinese ? metric.meaning_zh : metric.meaning }
}

/** The catalogue's group of a metric, and its place in the catalogue. */
export function placeOf(name: string, catalogue: Metric[]): { group: string; at: number } {
  const found = entryOf(name, catalogue)
  return found ? { group: found.metric.group, at: catalogue.indexOf(found.metric) } : { group: 'other', at: catalogue.length }
}

/** The first entry that matches, as in the catalogue itself. */
function entryOf(name: string, catalogue: Metric[]): { metric: Metric; parts: { [part: string]: string } } | null {
  for (const metric of catalogue) {
    if (metric.name === name) return { metric, parts: {} }
    const found = metric.name.includes('<') ? expression(metric.name).exec(name) : null
    if (found) return { metric, parts: found.groups ?? {} }
  }
  return null
}

const expressions = new Map<string, RegExp>()

function expression(name: string): RegExp {
  let found = expressions.get(name)
  if (!found) {
    const parts = name.split(/<(\w+)>/)
    const written = parts.map((part, at) => (at % 2 ? `(?<${part}>.+)` : part.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')))
    expressions.set(name, (found = new RegExp(`^${written.join('')}$`)))
  }
  return found
}
