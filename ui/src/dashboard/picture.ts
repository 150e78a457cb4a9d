/** A chart as a PNG, with its title and what its curves are. */

import type uPlot from 'uplot'

const MARGIN = 16
const LINE = 18

interface Named {
  label: string
  colour: string
  dashed: boolean
}

export function picture(plot: uPlot, title: string, named: Named[], isDark: boolean): Promise<Blob> {
  const { width, height } = plot.ctx.canvas
  const ratio = devicePixelRatio || 1
  const head = (MARGIN + LINE) * ratio
  const foot = (named.length * LINE + MARGIN) * ratio
  const canvas = document.createElement('canvas')
  canvas.width = width + 2 * MARGIN * ratio
  canvas.height = head + height + foot
  const paper = canvas.getContext('2d')!
  paper.fillStyle = isDark ? '#14181f' : '#ffffff'
  paper.fillRect(0, 0, canvas.width, canvas.height)
  paper.drawImage(plot.ctx.canvas, MARGIN * ratio, head)
  paper.scale(ratio, ratio)
  const ink = isDark ? '#e6e9ee' : '#1c2128'
  paper.fillStyle = ink
  paper.font = 'bold 14px sans-serif'
  paper.fillText(title, MARGIN, MARGIN + 8)
  paper.font = '12px sans-serif'
  named.forEach(({ label, colour, dashed }, index) => {
    const y = (head + height) / ratio + MARGIN / 2 + index * LINE
    paper.strokeStyle = colour
    paper.lineWidth = 2.5
    paper.setLineDash(dashed ? [4, 3] : [])
    paper.beginPath()
    paper.moveTo(MARGIN, y - 4)
    paper.lineTo(MARGIN + 18, y - 4)
    paper.stroke()
    paper.fillStyle = ink
    paper.fillText(label, MARGIN + 26, y)
  })
  return new Promise((resolve, reject) => canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error('no picture'))), 'image/png'))
}
